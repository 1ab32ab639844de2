#include "parallel/gradients/bucket_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace keel::parallel {
namespace {

// Every element of every parameter is owned by exactly one rank, in whole rows, one run a rank; no
// two parameters overlap.
void CheckLayout(const std::vector<ParameterExtent>& parameters, const BucketLayout& layout,
                 int dp) {
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    const Bucket& bucket = layout.buckets[b];
    int64_t end = 0;
    for (int p : bucket.parameters) {
      const auto& extent = parameters[static_cast<size_t>(p)];
      const auto& place = layout.places[static_cast<size_t>(p)];
      ASSERT_EQ(place.bucket, static_cast<int>(b));
      ASSERT_GE(place.offset, end) << "parameters overlap";
      end = place.offset + extent.rows * extent.row_size;
      ASSERT_LE(end, dp * bucket.chunk) << "past the bucket";
      int64_t next_row = 0;
      for (int rank = 0; rank < dp; ++rank) {
        const auto rows = layout.OwnedRows(parameters, p, rank);
        if (rows.begin == rows.end) continue;
        ASSERT_EQ(rows.begin, next_row);
        next_row = rows.end;
        // The rows lie inside the rank's chunk, cut at row boundaries exactly.
        const int64_t first = place.offset + rows.begin * extent.row_size;
        const int64_t last = place.offset + rows.end * extent.row_size;
        ASSERT_GE(first, rank * bucket.chunk);
        ASSERT_LE(last, (rank + 1) * bucket.chunk);
      }
      ASSERT_EQ(next_row, extent.rows) << "rows owned by nobody, or a row cut in two";
    }
  }
}

TEST(BucketLayoutTest, RandomParametersAreCutOnRows) {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    std::vector<ParameterExtent> parameters;
    const int count = std::uniform_int_distribution<>(1, 12)(random);
    for (int i = 0; i < count; ++i) {
      ParameterExtent extent;
      extent.rows = std::uniform_int_distribution<>(1, 300)(random);
      extent.row_size = round % 3 == 0 ? 1 : std::uniform_int_distribution<>(1, 90)(random);
      extent.own_bucket = std::uniform_int_distribution<>(0, 5)(random) == 0;
      parameters.push_back(extent);
    }
    const int dp = std::uniform_int_distribution<>(1, 9)(random);
    const int64_t bucket = std::uniform_int_distribution<>(1, 20000)(random);
    const BucketLayout layout = PlanBuckets(parameters, dp, bucket, 4);
    CheckLayout(parameters, layout, dp);
    if (HasFatalFailure()) FAIL() << "round " << round << " dp " << dp;
  }
}

TEST(BucketLayoutTest, WasteIsSmallForATransformer) {
  std::vector<ParameterExtent> parameters = {{32000, 768}};
  for (int layer = 0; layer < 12; ++layer) {
    for (ParameterExtent e :
         {ParameterExtent{768, 2048}, ParameterExtent{4096, 768}, ParameterExtent{768, 1},
          ParameterExtent{768, 768}, ParameterExtent{1280, 768}, ParameterExtent{768, 1}}) {
      parameters.push_back(e);
    }
  }
  int64_t elements = 0;
  for (const auto& e : parameters) elements += e.rows * e.row_size;
  for (int dp : {1, 2, 3, 4, 8, 16, 64}) {
    const BucketLayout layout = PlanBuckets(parameters, dp, int64_t{8} << 20);
    CheckLayout(parameters, layout, dp);
    const auto buckets = static_cast<int64_t>(layout.buckets.size());
    // A few rows for each cut.
    EXPECT_LT(layout.total - elements, buckets * dp * 2048 * 3) << "dp " << dp;
  }
}

TEST(BucketLayoutTest, LateParametersStandApart) {
  const std::vector<ParameterExtent> parameters = {
      {10, 4, false}, {7, 1, true}, {10, 4, false}, {3, 1, true}};
  const BucketLayout layout = PlanBuckets(parameters, 2, 1000, 2);
  ASSERT_EQ(layout.buckets.size(), 2u);
  EXPECT_FALSE(layout.buckets[0].late);
  EXPECT_TRUE(layout.buckets[1].late);
  EXPECT_EQ(layout.buckets[1].parameters, (std::vector<int>{1, 3}));
}

}  // namespace
}  // namespace keel::parallel
