#include "checkpoint/read/read_plan.h"

#include <gmock/gmock.h>

#include <array>
#include <utility>
#include <vector>

#include "checkpoint/format/index.h"

namespace keel::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::SizeIs;

const TensorInfo kTensor{"w", DType::kF32, Dims{8}};
constexpr const char* kScope = "actor/model";

// A checkpoint that has these rows of the tensor, [begin, end) each, one after the other in a file.
Index Saved(const std::vector<std::pair<int64_t, int64_t>>& rows) {
  IndexBuilder builder(4096);
  ChunkedDigest digest;
  for (const auto& [begin, end] : rows) {
    builder.AddBox(kScope, kTensor, {Dims{begin}, Dims{end - begin}}, "file", digest.size);
    digest.size += (end - begin) * 4;
  }
  digest.chunks.resize(1);
  builder.AddFile("file", digest);
  return ValueOrThrow(Index::Parse(ValueOrThrow(builder.Build()), "test"));
}

struct Wanted {
  std::array<float, 8> values{};
  ShardTable table;
  Wanted() {
    ThrowIfError(table.Add(kTensor, Box::Whole(kTensor.shape),
                           {reinterpret_cast<std::byte*>(values.data()), Dims{1}}));
  }
};

Result<ReadPlan> Plan(const Index& index, const Wanted& wanted, bool may_lack) {
  ReadRequest request{kScope, &wanted.table, {}};
  if (may_lack) request.allow_missing = {"w*"};
  return ReadPlan::Make(index, std::vector<ReadRequest>{request});
}

TEST(ReadPlan, EveryWantedElementIsReadExactlyOnce) {
  const Wanted wanted;
  const Index whole = Saved({{0, 3}, {3, 8}});
  const Result<ReadPlan> plan = Plan(whole, wanted, false);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_THAT(plan->pieces().all(), SizeIs(2));
  EXPECT_TRUE(plan->uncovered().empty());

  const Status hole = Plan(Saved({{0, 3}, {5, 8}}), wanted, false).status();
  EXPECT_EQ(hole.code(), StatusCode::kInvalidData);
  EXPECT_THAT(hole.message(), AllOf(HasSubstr("tensors that are not covered once (1)"),
                                    HasSubstr("actor/model:w: 6 of 8 elements")));
  EXPECT_THAT(Plan(Saved({{0, 5}, {3, 8}}), wanted, false).status().message(),
              AllOf(HasSubstr("tensors that are not covered once (1)"), HasSubstr("overlap")));
}

TEST(ReadPlan, WhatMayBeMissingMayLackElementsAndNotHaveThemTwice) {
  const Wanted wanted;
  const Index hole = Saved({{0, 3}, {5, 8}});
  const Result<ReadPlan> plan = Plan(hole, wanted, true);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_THAT(plan->uncovered(), ElementsAre(Pair(0, 0)));

  // Four rows are there, two of them twice: fewer than are wanted, and still an overlap.
  EXPECT_THAT(Plan(Saved({{0, 3}, {1, 4}}), wanted, true).status().message(), HasSubstr("overlap"));
}

}  // namespace
}  // namespace keel::checkpoint
