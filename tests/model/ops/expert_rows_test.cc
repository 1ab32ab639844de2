#include "model/ops/expert_rows.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace keel::model {
namespace {

TEST(ExpertRows, StandByExpertAndWithinOneByToken) {
  const at::Tensor chosen = at::tensor({2, 0, 3, 2, 0, 3}, at::kLong).view({3, 2});
  const ExpertRows sorted = SortByExpert(chosen, 5);
  EXPECT_EQ(sorted.begins, (std::vector<int64_t>{0, 2, 2, 4, 6, 6}));
  EXPECT_TRUE(at::equal(sorted.tokens, at::tensor({0, 2, 0, 1, 1, 2}, at::kLong)));
  EXPECT_TRUE(at::equal(sorted.slots, at::tensor({1, 4, 0, 3, 2, 5}, at::kLong)));
  EXPECT_TRUE(at::equal(sorted.rows, at::tensor({2, 0, 4, 3, 1, 5}, at::kLong).view({3, 2})));
}

TEST(ExpertRows, WhatIsSpreadIsGatheredByToken) {
  const at::Tensor chosen = at::tensor({1, 0, 0, 2, 2, 1}, at::kLong).view({3, 2});
  const ExpertRows sorted = SortByExpert(chosen, 3);
  const at::Tensor x = at::arange(12, at::kFloat).view({3, 4});
  EXPECT_TRUE(at::equal(sorted.Gather(sorted.Spread(x)), x * 2));
  const at::Tensor weights = at::tensor({0.25, 0.5, 1.0, 0.0, 2.0, 2.0}, at::kFloat).view({3, 2});
  EXPECT_TRUE(at::equal(sorted.Gather(sorted.Spread(x), weights), x * weights.sum(1, true)));
  EXPECT_EQ(sorted.Gather(sorted.Spread(x).to(at::kBFloat16)).scalar_type(), at::kBFloat16);
}

TEST(ExpertRows, NoTokensAreNoRows) {
  const ExpertRows sorted = SortByExpert(at::empty({0, 2}, at::kLong), 3);
  EXPECT_EQ(sorted.count(), 0);
  EXPECT_EQ(sorted.begins, (std::vector<int64_t>{0, 0, 0, 0}));
}

TEST(ExpertRows, AreTheSameWhereverTheyAreSorted) {
  for (const int64_t tokens : {0, 1, 37}) {
    const at::Tensor chosen = std::get<1>(at::topk(at::randn({tokens, 9}), 3, 1));
    const ExpertRows known = SortByExpert(chosen, 9);
    const ExpertRows there = SortByExpertInPlace(chosen, 9);
    EXPECT_TRUE(at::equal(there.tokens, known.tokens));
    EXPECT_TRUE(at::equal(there.slots, known.slots));
    EXPECT_TRUE(at::equal(there.rows, known.rows));
    EXPECT_TRUE(at::equal(there.ends.to(at::kLong), at::tensor(known.begins).narrow(0, 1, 9)));
    EXPECT_EQ(there.ends.scalar_type(), at::kInt);
    EXPECT_TRUE(there.begins.empty());
  }
}

TEST(ExpertRows, AnExpertThatIsNoneIsAnError) {
  EXPECT_THROW(SortByExpert(at::full({1, 1}, 3, at::kLong), 3), std::exception);
}

}  // namespace
}  // namespace keel::model
