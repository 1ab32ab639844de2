#include "trainer/rl/learn/batch_outline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace keel::trainer::rl {
namespace {

BatchOutline Outline(int64_t prompts, int64_t samples = 2) {
  BatchOutline outline;
  for (int64_t p = 0; p < prompts; ++p) {
    for (int64_t s = 0; s < samples; ++s)
      outline.responses.push_back({p, 3 + p % 2, 2 + (p + s) % 3, 1 + (p + s) % 3});
  }
  return outline;
}

TEST(BatchOutlineTest, SaysOfABatchHowLongItIsAndHowMuchIsLearntFrom) {
  Response a, b;
  a.position = 7;
  a.prompt = {1, 2, 3};
  a.tokens = {4, 5, 6, 7};
  a.given = {{1, 3}};
  b.position = 8;
  b.prompt = {1};
  const BatchOutline outline = BatchOutline::Of(RolloutBatch::Make({b, a}));
  EXPECT_EQ(outline.responses, (std::vector<BatchOutline::Entry>{{7, 3, 4, 2}, {8, 1, 0, 0}}));
  EXPECT_EQ(outline.prompt_tokens(), 4);
  EXPECT_EQ(outline.response_tokens(), 4);
  EXPECT_EQ(ValueOrThrow(BatchOutline::FromBytes(outline.Bytes())).responses, outline.responses);
}

TEST(BatchOutlineTest, BytesOfAnotherFormAreRefused) {
  const std::string bytes = Outline(2).Bytes();
  EXPECT_FALSE(BatchOutline::FromBytes(bytes.substr(0, bytes.size() - 1)).ok());
  BatchOutline wrong = Outline(1);
  wrong.responses[0].policy_tokens = wrong.responses[0].tokens + 1;
  EXPECT_FALSE(BatchOutline::FromBytes(wrong.Bytes()).ok());
  wrong.responses[0].policy_tokens = wrong.responses[0].tokens = -1;
  EXPECT_FALSE(BatchOutline::FromBytes(wrong.Bytes()).ok());
  EXPECT_TRUE(ValueOrThrow(BatchOutline::FromBytes("")).responses.empty());
}

TEST(MiniBatchTest, ResponsesOfAPromptStayTogether) {
  const std::vector<MiniBatch> cut = CutIntoMiniBatches(Outline(5), {2, false, 0}, 1, 0);
  EXPECT_EQ(cut, (std::vector<MiniBatch>{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9}}));
}

TEST(MiniBatchTest, AShuffleIsNamedBySeedStepAndEpoch) {
  const BatchOutline outline = Outline(16);
  const auto cut = [&](uint64_t seed, int64_t step, int64_t epoch) {
    return CutIntoMiniBatches(outline, {16, true, seed}, step, epoch).front();
  };
  const MiniBatch first = cut(3, 7, 0);
  EXPECT_EQ(cut(3, 7, 0), first);
  EXPECT_NE(cut(4, 7, 0), first);
  EXPECT_NE(cut(3, 8, 0), first);
  EXPECT_NE(cut(3, 7, 1), first);
  for (size_t i = 0; i < first.size(); i += 2) EXPECT_EQ(first[i] + 1, first[i + 1]);
  MiniBatch sorted = first;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, CutIntoMiniBatches(outline, {16, false, 3}, 7, 0).front());
}

TEST(DealOutTest, EachResponseOfAnUpdateIsOneRanksAndEmptyOnesAreNobodys) {
  BatchOutline outline = Outline(9, 3);
  outline.responses[4].tokens = 0;
  MiniBatch update(20);
  std::iota(update.begin(), update.end(), 2);
  for (const int dp : {1, 2, 3, 5}) {
    const auto shares = DealOut(outline, update, dp);
    ASSERT_EQ(shares.size(), static_cast<size_t>(dp));
    MiniBatch all;
    int64_t most = 0, least = 1 << 30;
    for (const auto& share : shares) {
      EXPECT_TRUE(std::is_sorted(share.begin(), share.end()));
      int64_t tokens = 0;
      for (const int64_t i : share) {
        const BatchOutline::Entry& one = outline.responses[static_cast<size_t>(i)];
        tokens += one.prompt_tokens + one.tokens;
      }
      most = std::max(most, tokens);
      least = std::min(least, tokens);
      all.insert(all.end(), share.begin(), share.end());
    }
    std::sort(all.begin(), all.end());
    MiniBatch expected = update;
    std::erase(expected, 4);
    EXPECT_EQ(all, expected);
    EXPECT_LE(most - least, 8) << dp;  // the longest response with its prompt
  }
}

TEST(DenominatorsTest, CountTheWholeUpdateWhoeverLearnsFromIt) {
  BatchOutline outline = Outline(4);
  outline.responses[3].policy_tokens = 0;
  const LossDenominators found = DenominatorsOf(outline, MiniBatch{1, 2, 3}, 8);
  EXPECT_EQ(found.tokens, outline.responses[1].policy_tokens + outline.responses[2].policy_tokens);
  EXPECT_EQ(found.sequences, 2);
  EXPECT_EQ(found.scale_factor, 8);
}

}  // namespace
}  // namespace keel::trainer::rl
