// What a whole mini-batch decides about a token or a pair: the choice by covariance, and partners
// by rank.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "common/status.h"
#include "trainer/algorithms/covariance_choice.h"
#include "trainer/algorithms/entropy_choice.h"
#include "trainer/algorithms/optimal_transport.h"

namespace keel::trainer::rl {
namespace {

using ::testing::ElementsAre;

struct Tokens {
  std::vector<float> log_probs, old, advantages;
  std::vector<uint8_t> mask;
  std::vector<int64_t> all;

  // Covariances 0.5, -1.5, -1.5, 0.5 around the means 0 and -1.5; the masked token would have
  // the largest.
  static Tokens Four() {
    Tokens tokens{{-1, -3, 0, -2, 0}, {-1, -3, 0, -2, 0}, {1, 1, -1, -1, 900}, {1, 1, 1, 1, 0}, {}};
    tokens.all = {0, 1, 2, 3, 4};
    return tokens;
  }
  std::vector<uint8_t> Choose(PolicyLossMode mode, const CovarianceOptions& options,
                              const CovarianceDraw& draw = {}) const {
    return ChooseByCovariance(mode, {log_probs, old, advantages, mask, all}, 0.2, 0.2, options,
                              draw);
  }
};

TEST(EntropyChoiceTest, TakesWhatIsNotBelowTheQuantileOfWhatCounts) {
  const std::vector<float> entropies = {0.5F, 3, 1, 2, 99, 4};
  const std::vector<uint8_t> mask = {1, 1, 1, 1, 0, 1};
  const std::vector<int64_t> all = {0, 1, 2, 3, 4, 5};
  EXPECT_THAT(ChooseByEntropy(entropies, mask, all, 0), ElementsAre(0, 0, 0, 0, 0, 1));
  // The quantile 0.75 of five is the fourth itself, 0.76 lies above it.
  EXPECT_THAT(ChooseByEntropy(entropies, mask, all, 0.25), ElementsAre(0, 1, 0, 0, 0, 1));
  EXPECT_THAT(ChooseByEntropy(entropies, mask, all, 0.24), ElementsAre(0, 0, 0, 0, 0, 1));
  EXPECT_THAT(ChooseByEntropy(entropies, mask, all, 0.999), ElementsAre(0, 1, 1, 1, 0, 1));
  // Of another mini-batch's tokens nothing is looked at.
  EXPECT_THAT(ChooseByEntropy(entropies, mask, std::vector<int64_t>{0, 2}, 0.5),
              ElementsAre(0, 0, 1, 0, 0, 0));
}

TEST(EntropyChoiceTest, EqualOnesStayTogetherAndNoneIsNoError) {
  const std::vector<float> same = {0, 0, 0};
  const std::vector<uint8_t> mask = {1, 1, 1}, none = {0, 0, 0};
  const std::vector<int64_t> all = {0, 1, 2};
  EXPECT_THAT(ChooseByEntropy(same, mask, all, 0.3), ElementsAre(1, 1, 1));
  EXPECT_THAT(ChooseByEntropy(same, none, all, 0.3), ElementsAre(0, 0, 0));
  // Nor does the rounding of one entropy in two batches part them.
  const std::vector<float> nearly = {5.45979452F, 5.45979357F, 5.45979452F};
  EXPECT_THAT(ChooseByEntropy(nearly, mask, all, 0.3), ElementsAre(1, 1, 1));
  // However sure of itself the policy is.
  const std::vector<float> sure = {1e-7F, 2e-7F, 3e-7F};
  EXPECT_THAT(ChooseByEntropy(sure, mask, all, 0.3), ElementsAre(0, 0, 1));
  EXPECT_THAT(ChooseByEntropy({}, {}, {}, 0.3), ElementsAre());
  EXPECT_THROW(ChooseByEntropy(same, std::vector<uint8_t>{1}, all, 0.3), Error);
}

// A place that is 0.9 of 10 can be 8.99... in binary: the token that it means must not be lost.
TEST(EntropyChoiceTest, ATokenThatTheQuantileFallsOnIsChosen) {
  for (const size_t n : {size_t{11}, size_t{101}, size_t{1001}}) {
    std::vector<float> entropies(n);
    std::vector<int64_t> all(n);
    std::iota(all.begin(), all.end(), 0);
    for (size_t i = 0; i < n; ++i) entropies[i] = 1 + static_cast<float>(i) * 0.001F;
    for (const int tenths : {1, 2, 3, 4, 5, 6, 7, 8, 9}) {
      const auto chosen = ChooseByEntropy(entropies, std::vector<uint8_t>(n, 1), all, tenths * 0.1);
      EXPECT_EQ(std::accumulate(chosen.begin(), chosen.end(), size_t{0}),
                1 + (n - 1) * static_cast<size_t>(tenths) / 10)
          << n << " " << tenths;
    }
  }
}

TEST(CovarianceChoiceTest, KlCovTakesTheLargestAndOneAtLeast) {
  const Tokens four = Tokens::Four();
  CovarianceOptions options;
  EXPECT_THAT(four.Choose(PolicyLossMode::kKlCov, options), ElementsAre(1, 0, 0, 0, 0));
  options.kl_cov_ratio = 0.5;
  EXPECT_THAT(four.Choose(PolicyLossMode::kKlCov, options), ElementsAre(1, 0, 0, 1, 0));
  options.kl_cov_ratio = 0.76;  // of 4 tokens 3; of the two that are equal the first
  EXPECT_THAT(four.Choose(PolicyLossMode::kKlCov, options), ElementsAre(1, 1, 0, 1, 0));
  options.kl_cov_ratio = 30;
  EXPECT_THAT(four.Choose(PolicyLossMode::kKlCov, options), ElementsAre(1, 1, 1, 1, 0));
}

TEST(CovarianceChoiceTest, ClipCovDrawsBetweenTheBoundsWhatIsNotClipped) {
  Tokens four = Tokens::Four();
  CovarianceOptions options{.clip_cov_ratio = 1, .clip_cov_lb = 0, .clip_cov_ub = 0.6};
  EXPECT_THAT(four.Choose(PolicyLossMode::kClipCov, options), ElementsAre(1, 0, 0, 1, 0));
  four.old[0] = -1.3f;  // ratio 1.35 with a positive advantage: clipped already
  EXPECT_THAT(four.Choose(PolicyLossMode::kClipCov, options), ElementsAre(0, 0, 0, 1, 0));
  four.old[0] = -0.7f;  // below 1: nothing is clipped
  EXPECT_THAT(four.Choose(PolicyLossMode::kClipCov, options), ElementsAre(1, 0, 0, 1, 0));
  options.clip_cov_lb = 0.5;  // bounds do not belong to it
  EXPECT_THAT(four.Choose(PolicyLossMode::kClipCov, options), ElementsAre(0, 0, 0, 0, 0));
}

// A draw is of (seed, step, epoch, token): no order of work and no other mini-batch is in it.
TEST(CovarianceChoiceTest, TheDrawIsItsCountersAndEven) {
  const Tokens four = Tokens::Four();
  const CovarianceOptions options{.clip_cov_ratio = 0.01, .clip_cov_lb = 0, .clip_cov_ub = 9};
  int first = 0;
  std::map<std::vector<uint8_t>, int> found;
  for (int64_t step = 0; step < 400; ++step) {
    const CovarianceDraw draw{5, step, 1};
    const auto chosen = four.Choose(PolicyLossMode::kClipCov, options, draw);
    EXPECT_EQ(chosen, four.Choose(PolicyLossMode::kClipCov, options, draw));
    first += chosen[0];
    ++found[chosen];
  }
  EXPECT_EQ(found.size(), 2u);  // tokens 0 and 3, one of them at a time
  EXPECT_GT(first, 150);
  EXPECT_LT(first, 250);
  int other_epoch = 0, other_seed = 0;
  for (int64_t step = 0; step < 100; ++step) {
    const auto chosen = four.Choose(PolicyLossMode::kClipCov, options, {5, step, 1});
    other_epoch += chosen != four.Choose(PolicyLossMode::kClipCov, options, {5, step, 2});
    other_seed += chosen != four.Choose(PolicyLossMode::kClipCov, options, {6, step, 1});
  }
  EXPECT_GT(other_epoch, 20);
  EXPECT_GT(other_seed, 20);
}

TEST(CovarianceChoiceTest, OtherMiniBatchesAndMaskedTokensAreNotLookedAt) {
  Tokens four = Tokens::Four();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CovarianceOptions options;
  options.kl_cov_ratio = 0.5;
  four.advantages[4] = static_cast<float>(nan);
  EXPECT_THAT(four.Choose(PolicyLossMode::kKlCov, options), ElementsAre(1, 0, 0, 1, 0));
  four.all = {0, 1};  // log p -1 and -3, advantages alike: no covariance, and so the first
  four.log_probs[3] = static_cast<float>(nan);
  EXPECT_THAT(four.Choose(PolicyLossMode::kKlCov, options), ElementsAre(1, 0, 0, 0, 0));
  four.all = {4};
  EXPECT_THAT(four.Choose(PolicyLossMode::kKlCov, options), ElementsAre(0, 0, 0, 0, 0));
  four.old.pop_back();
  EXPECT_THROW(four.Choose(PolicyLossMode::kKlCov, options), Error);
}

TEST(OptimalTransportTest, PartnersHaveTheSameRank) {
  const std::vector<double> values = {3, -1, 2, 2}, others = {10, 40, 30, 20};
  EXPECT_THAT(PartnersByRank(values, others), ElementsAre(40, 10, 20, 30));
  EXPECT_TRUE(PartnersByRank({}, {}).empty());
  EXPECT_THROW(PartnersByRank(values, {}), Error);
  // What is no number is larger than all numbers, and harms nobody else.
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(PartnersByRank(std::vector<double>{nan, 1, 0}, std::vector<double>{1, 2, 3}),
              ElementsAre(3, 2, 1));
}

}  // namespace
}  // namespace keel::trainer::rl
