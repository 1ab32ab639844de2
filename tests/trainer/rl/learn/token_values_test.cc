// Values of tokens that several ranks found, put together; bytes that no rank wrote.

#include "trainer/rl/learn/token_values.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/support/ranks.h"

namespace keel::trainer::rl {
namespace {

// Of spans that stand one after the other in its rows, after one row of a prompt.
RlMicroBatch MicroBatchOf(const std::vector<std::pair<int64_t, int64_t>>& spans) {
  RlMicroBatch micro;
  int64_t at = 1;
  for (const auto& [begin, size] : spans) {
    micro.spans.push_back({begin, begin, at, size});
    at += size;
  }
  return micro;
}

TEST(TokenValuesTest, EachGetsWhereItBelongs) {
  // Tokens 0-2 and 6 are rank 0's, 3-5 rank 2's; of 7 nobody knows, and rank 1 has nothing to say.
  const std::vector<float> all = {1, 2, 3, 101, 102, 103, 4, 0};
  testing::RunRanks(1, 3, 1, [&](parallel::ParallelContext& context) {
    const int rank = context.world().rank();
    TokenValues values;
    if (rank == 0)
      values.Add(MicroBatchOf({{6, 1}, {0, 3}}), at::tensor({9.f, 4.f, 1.f, 2.f, 3.f}));
    if (rank == 2) values.Add(MicroBatchOf({{3, 3}}), at::tensor({9.f, 101.f, 102.f, 103.f}));
    EXPECT_EQ(values.OnRank0(context, at::kCPU, 8), rank == 0 ? all : std::vector<float>());
  });
}

TEST(TokenValuesTest, BytesOfOtherTokensAreRefusedAndWriteNowhereElse) {
  TokenValues values;
  values.Add(MicroBatchOf({{2, 2}, {5, 1}}), at::tensor({0.f, 1.f, 2.f, 3.f}));
  const std::string bytes = values.Bytes();
  std::vector<float> found(6);
  ASSERT_TRUE(TokenValues::Place(bytes, found).ok());
  EXPECT_EQ(found, (std::vector<float>{0, 0, 1, 2, 0, 3}));
  EXPECT_FALSE(TokenValues::Place(bytes, std::span(found).first(5)).ok());
  EXPECT_FALSE(TokenValues::Place(bytes + '\0', found).ok());
  for (size_t size = 1; size < bytes.size(); ++size)
    EXPECT_FALSE(TokenValues::Place(bytes.substr(0, size), found).ok()) << size;
  // Behind the six places stands what nothing may touch.
  std::mt19937 random(7);
  for (int round = 0; round < 20'000; ++round) {
    std::string changed = bytes;
    for (int change = 0; change < 1 + round % 3; ++change)
      changed[random() % (8 + 2 * 16)] = static_cast<char>(random());
    std::vector<float> guarded(16, -1);
    (void)TokenValues::Place(changed, std::span(guarded).subspan(5, 6));
    EXPECT_TRUE(std::all_of(guarded.begin(), guarded.begin() + 5, [](float v) { return v == -1; }));
    EXPECT_TRUE(std::all_of(guarded.begin() + 11, guarded.end(), [](float v) { return v == -1; }));
  }
}

}  // namespace
}  // namespace keel::trainer::rl
