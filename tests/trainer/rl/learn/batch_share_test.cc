// Each rank gets of a batch what its data-parallel rank learns from, and no more.

#include "trainer/rl/learn/batch_share.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>

#include "tests/support/ranks.h"

namespace keel::trainer::rl {
namespace {

RolloutBatch WithHoles(int64_t prompts) {
  std::vector<Response> responses;
  for (int64_t p = 0; p < prompts; ++p) {
    for (int sample = 0; sample < 2; ++sample) {
      Response r;
      r.position = 40 + p;
      r.sample = sample;
      for (int64_t t = 0; t < 2 + p % 3; ++t) r.prompt.push_back(static_cast<int32_t>(100 * p + t));
      for (int64_t t = 0; t < (p + 3 * sample) % 5; ++t)
        r.tokens.push_back(static_cast<int32_t>(1000 * p + 100 * sample + t));
      if (r.tokens.size() == 4) r.given = {{1, 3}};
      responses.push_back(r);
    }
  }
  return RolloutBatch::Make(std::move(responses));
}

std::vector<MiniBatch> TwoUpdates(const BatchOutline& outline) {
  return CutIntoMiniBatches(outline, {(std::ssize(outline.responses) / 2 + 1) / 2, false, 0}, 1, 0);
}

void ExpectHeld(const BatchShare& share, const RolloutBatch& whole, int64_t response, int64_t at) {
  const BatchShare::Held held = share.Of(response);
  const auto i = static_cast<size_t>(response);
  const Response& r = whole.responses[i];
  EXPECT_TRUE(std::equal(held.prompt.begin(), held.prompt.end(), r.prompt.begin(), r.prompt.end()));
  EXPECT_TRUE(std::equal(held.tokens.begin(), held.tokens.end(), r.tokens.begin(), r.tokens.end()));
  EXPECT_EQ(held.begin, whole.boundaries[i]);
  EXPECT_EQ(held.at, at);
  const auto mask = whole.mask.begin() + held.begin;
  EXPECT_TRUE(std::equal(held.mask.begin(), held.mask.end(), mask, mask + std::ssize(r.tokens)));
}

TEST(BatchShareTest, EachRankHasWhatItLearnsFromAndNothingElse) {
  const RolloutBatch whole = WithHoles(7);
  std::mutex mutex;
  std::map<int, int64_t> tokens_of_dp;
  testing::RunRanks(2, 3, 2, [&](parallel::ParallelContext& context) {
    const RolloutBatch mine = context.rank() == 0 ? whole : RolloutBatch::Make({});
    const BatchShare share = BatchShare::HandOut(context, at::kCPU, mine, TwoUpdates);
    EXPECT_EQ(share.outline().responses, BatchOutline::Of(whole).responses);
    EXPECT_EQ(share.tokens(), whole.response_tokens());
    std::set<int64_t> expected;
    for (const MiniBatch& update : TwoUpdates(share.outline())) {
      const auto shares = DealOut(share.outline(), update, 3);
      for (const int64_t i : shares[static_cast<size_t>(context.dp_rank())]) expected.insert(i);
    }
    int64_t at = 0;
    for (int64_t i = 0; i < std::ssize(whole.responses); ++i) {
      if (!expected.contains(i)) {
        EXPECT_THROW((void)share.Of(i), Error) << i;
        continue;
      }
      ExpectHeld(share, whole, i, at);
      at += std::ssize(share.Of(i).tokens);
    }
    EXPECT_EQ(share.held_tokens(), at);
    const std::lock_guard lock(mutex);
    const auto [known, first] = tokens_of_dp.try_emplace(context.dp_rank(), at);
    EXPECT_EQ(known->second, at);  // all ranks of a replica have the same
  });
  int64_t sum = 0;
  for (const auto& [dp, tokens] : tokens_of_dp) {
    EXPECT_LT(tokens, whole.response_tokens() / 2);
    sum += tokens;
  }
  EXPECT_EQ(sum, whole.response_tokens());
}

TEST(BatchShareTest, ValuesOfTokensGoToWhoHoldsThem) {
  testing::RunRanks(2, 2, 1, [&](parallel::ParallelContext& context) {
    const bool rank0 = context.rank() == 0;
    RolloutBatch whole = rank0 ? WithHoles(6) : RolloutBatch::Make({});
    BatchShare share = BatchShare::HandOut(context, at::kCPU, whole, TwoUpdates);
    std::vector<float> values, nothing;
    if (rank0) {
      for (int64_t t = 0; t < whole.response_tokens(); ++t)
        values.push_back(static_cast<float>(t) * 0.5F);
      // What a correction rejects meanwhile.
      std::fill(whole.mask.begin(), whole.mask.begin() + whole.boundaries[5], uint8_t{0});
    }
    const std::vector<std::vector<float>*> columns = {&nothing, &values};
    share.HandOutValues(context, at::kCPU, columns);
    share.HandOutMask(context, at::kCPU, whole);
    EXPECT_TRUE(nothing.empty());
    ASSERT_EQ(std::ssize(values), share.held_tokens());
    const BatchOutline before = BatchOutline::Of(WithHoles(6));
    for (int64_t i = 0; i < 12; ++i) {
      const auto& entry = share.outline().responses[static_cast<size_t>(i)];
      EXPECT_EQ(entry.policy_tokens,
                i < 5 ? 0 : before.responses[static_cast<size_t>(i)].policy_tokens);
    }
    for (const MiniBatch& update : TwoUpdates(share.outline())) {
      const auto shares = DealOut(share.outline(), update, 2);
      for (const int64_t i : shares[static_cast<size_t>(context.dp_rank())]) {
        const BatchShare::Held held = share.Of(i);
        for (int64_t t = 0; t < std::ssize(held.tokens); ++t) {
          EXPECT_EQ(values[static_cast<size_t>(held.at + t)],
                    static_cast<float>(held.begin + t) * 0.5F);
          if (i < 5) {
            EXPECT_EQ(held.mask[static_cast<size_t>(t)], 0);
          }
        }
      }
    }
  });
}

TEST(BatchShareTest, OneRankHoldsAll) {
  const RolloutBatch whole = WithHoles(4);
  const BatchShare share = BatchShare::All(whole);
  EXPECT_EQ(share.held_tokens(), whole.response_tokens());
  for (int64_t i = 0; i < 8; ++i)
    ExpectHeld(share, whole, i, whole.boundaries[static_cast<size_t>(i)]);
  EXPECT_THROW((void)share.Of(8), Error);
}

}  // namespace
}  // namespace keel::trainer::rl
