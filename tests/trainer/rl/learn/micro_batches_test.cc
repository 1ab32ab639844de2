#include "trainer/rl/learn/micro_batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "model/ops/router_load.h"
#include "parallel/tensor/vocab_chunks.h"

namespace keel::trainer::rl {
namespace {

Response Made(int64_t position, std::vector<int32_t> prompt, std::vector<int32_t> tokens) {
  Response r;
  r.position = position;
  r.prompt = std::move(prompt);
  r.tokens = std::move(tokens);
  return r;
}

// Two responses, of the first of which the second token is given, and a sequence of padding.
TEST(MicroBatches, WhereTheModelPredictsTheTokensOfResponses) {
  Response first = Made(0, {1, 2}, {3, 4, 5});
  first.given = {{1, 2}};
  const RolloutBatch whole = RolloutBatch::Make({first, Made(1, {6}, {7, 8})});
  const auto batches = MakeRlMicroBatches(BatchShare::All(whole), std::vector<int64_t>{0, 1},
                                          {.micro_batch_size = 2, .pad_to_multiple = 4});
  ASSERT_EQ(batches.size(), 1U);
  const RlMicroBatch& one = batches[0];
  constexpr int64_t kNone = parallel::kIgnoreTarget;
  EXPECT_TRUE(at::equal(one.batch.ids, at::tensor({1, 2, 3, 4, 6, 7, 0, 0}, at::kLong)));
  EXPECT_TRUE(at::equal(one.batch.targets, at::tensor({kNone, int64_t{3}, int64_t{4}, int64_t{5},
                                                       int64_t{7}, int64_t{8}, kNone, kNone},
                                                      at::kLong)));
  EXPECT_TRUE(
      at::equal(one.layout.mask, at::tensor({0, 1, 0, 1, 1, 1, 0, 0}, at::kInt).to(at::kBool)));
  EXPECT_EQ(one.batch.packing.boundaries, (std::vector<int64_t>{0, 4, 6, 8}));
  const std::vector<float> values = {10, 11, 12, 13, 14};
  EXPECT_TRUE(at::equal(one.Spread(values), at::tensor({0, 10, 11, 12, 13, 14, 0, 0}, at::kFloat)));
}

// Its tokens are computed, but are none by which experts are to be balanced.
TEST(MicroBatches, AResponseThatIsLeftOutDoesNotCountInTheBalanceOfExperts) {
  RolloutBatch whole = RolloutBatch::Make({Made(0, {1, 2}, {3, 4}), Made(1, {6}, {7, 8})});
  std::fill(whole.mask.begin(), whole.mask.begin() + 2, 0);
  const auto batches = MakeRlMicroBatches(BatchShare::All(whole), std::vector<int64_t>{0, 1}, {});
  const model::ModelBatch& one = batches.at(0).batch;
  EXPECT_TRUE(at::equal(model::CountedTokens(one.learnt, one.packing),
                        at::tensor({0, 0, 0, 1, 1}, at::kFloat)));
}

}  // namespace
}  // namespace keel::trainer::rl
