#include "rollout/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>

namespace keel::rollout {
namespace {

ChosenToken Choose(const std::vector<float>& logits, const SamplingParams& params, Draw draw = {},
                   LogProbsMode mode = LogProbsMode::kProcessed,
                   const std::vector<int32_t>& context = {}) {
  Sampler::Workspace workspace;
  return ValueOrThrow(Sampler(mode).Choose(logits, params, draw, context, workspace));
}

// The distribution by definition: sort, cut, renormalise.
std::vector<double> Expected(const std::vector<float>& logits, const SamplingParams& p) {
  const size_t n = logits.size();
  std::vector<double> mass(n);
  const double largest = *std::max_element(logits.begin(), logits.end());
  for (size_t i = 0; i < n; ++i) mass[i] = std::exp((logits[i] - largest) / p.temperature);
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return mass[a] > mass[b]; });
  if (p.top_k > 0 && p.top_k < static_cast<int64_t>(n)) order.resize(static_cast<size_t>(p.top_k));
  double total = 0;
  for (const size_t i : order) total += mass[i];
  double before = 0;
  std::vector<double> kept(n, 0);
  for (const size_t i : order) {
    if (p.top_p < 1 && before >= p.top_p * total) break;
    before += mass[i];
    if (mass[i] >= p.min_p) kept[i] = mass[i];
  }
  const double sum = std::accumulate(kept.begin(), kept.end(), 0.0);
  for (double& x : kept) x /= sum;
  return kept;
}

ChosenToken ChooseOf(size_t vocabulary, const std::vector<float>& logits,
                     const SamplingParams& params, LogProbsMode mode, Draw draw = {}) {
  Sampler::Workspace workspace;
  return ValueOrThrow(Sampler(mode, vocabulary).Choose(logits, params, draw, {}, workspace));
}

// Pearson's statistic against the quantile at 1e-6, by Wilson and Hilferty.
void ExpectFrequencies(const std::vector<float>& logits, const SamplingParams& p, int draws) {
  const std::vector<double> expected = Expected(logits, p);
  std::vector<int> counts(logits.size(), 0);
  for (int i = 0; i < draws; ++i)
    ++counts[static_cast<size_t>(Choose(logits, p, {17, 3, i}).token)];
  double statistic = 0;
  int freedom = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (expected[i] == 0) {
      EXPECT_EQ(counts[i], 0) << "token " << i << " was cut off";
      continue;
    }
    ++freedom;
    const double mean = draws * expected[i];
    statistic += (counts[i] - mean) * (counts[i] - mean) / mean;
  }
  if (freedom == 0) return;
  const double a = 2.0 / (9 * freedom);
  const double bound = freedom * std::pow(1 - a + 4.7534 * std::sqrt(a), 3);
  EXPECT_LT(statistic, bound);
}

TEST(SamplerTest, FrequenciesPassAChiSquareTest) {
  const std::vector<float> logits = {0.5f, 1.5f, -0.5f, 1.0f, 0.0f};
  SamplingParams p;
  ExpectFrequencies(logits, p, 20'000);
  p.temperature = 0.5;
  ExpectFrequencies(logits, p, 20'000);
  p.temperature = 1.7;
  p.top_k = 3;
  ExpectFrequencies(logits, p, 20'000);
  p.top_k = -1;
  p.top_p = 0.8;
  ExpectFrequencies(logits, p, 20'000);
  p.top_p = 1;
  p.min_p = 0.4;
  ExpectFrequencies(logits, p, 20'000);
  p = {};
  p.top_k = 4;
  p.top_p = 0.7;
  p.min_p = 0.2;
  ExpectFrequencies(logits, p, 20'000);
}

TEST(SamplerTest, FrequenciesOfAVocabularyOfManyStrides) {
  std::vector<float> logits;
  for (int i = 0; i < 700; ++i) logits.push_back(std::sin(static_cast<float>(i)) * 1.5f);
  ExpectFrequencies(logits, {}, 60'000);
  SamplingParams p;
  p.top_p = 0.6;  // keeps more than the 64 that are sorted first
  ExpectFrequencies(logits, p, 60'000);
}

TEST(SamplerTest, ThePaddingAndTheImpossibleAreNeverDrawn) {
  std::vector<float> logits(300, -200.0f);  // exp(-200) is no float
  logits[137] = 0;
  logits[299] = 0.1f;
  std::set<int32_t> seen;
  for (int i = 0; i < 500; ++i) seen.insert(Choose(logits, {}, {1, 1, i}).token);
  EXPECT_EQ(seen, (std::set<int32_t>{137, 299}));
}

TEST(SamplerTest, GreedyTakesTheLowestOfEquals) {
  SamplingParams p;
  p.temperature = 0;
  const auto chosen = Choose({1, 3, 2, 3}, p);
  EXPECT_EQ(chosen.token, 1);
  EXPECT_NEAR(chosen.log_prob, -std::log(2 + std::exp(-1.0) + std::exp(-2.0)), 1e-6);
}

TEST(SamplerTest, LogProbabilitiesFollowTheirDefinition) {
  const std::vector<float> logits = {0.5f, 1.5f, -0.5f, 1.0f, 0.0f};
  SamplingParams p;
  p.temperature = 0.6;
  p.top_k = 3;
  p.top_p = 0.9;
  const auto processed = Expected(logits, p);
  const auto raw = Expected(logits, {});
  for (int i = 0; i < 100; ++i) {
    const auto a = Choose(logits, p, {5, 0, i});
    EXPECT_NEAR(a.log_prob, std::log(processed[static_cast<size_t>(a.token)]), 1e-6);
    const auto b = Choose(logits, p, {5, 0, i}, LogProbsMode::kRaw);
    EXPECT_EQ(a.token, b.token) << "asking for another log-probability changed the token";
    EXPECT_NEAR(b.log_prob, std::log(raw[static_cast<size_t>(b.token)]), 1e-6);
    EXPECT_NEAR(*LogProbOf(logits, b.token), b.log_prob, 1e-7);
  }
}

// What the trainer computes, whatever the token was drawn by.
TEST(SamplerTest, ThePolicysLogProbabilityKnowsTheTemperatureAlone) {
  const std::vector<float> logits = {0.5f, 1.5f, -0.5f, 1.0f, 0.0f};
  SamplingParams plain;
  plain.temperature = 0.6;
  const auto policy = Expected(logits, plain);
  for (const double penalty : {1.0, 1.3}) {
    for (const bool filtered : {false, true}) {
      SamplingParams p = plain;
      p.repetition_penalty = penalty;
      if (filtered) {
        p.top_k = 3;
        p.top_p = 0.9;
        p.min_p = 0.05;
      }
      for (int i = 0; i < 60; ++i) {
        const std::vector<int32_t> context = {1, 4};
        const auto a = Choose(logits, p, {5, 0, i}, LogProbsMode::kPolicy, context);
        EXPECT_NEAR(a.log_prob, std::log(policy[static_cast<size_t>(a.token)]), 1e-6);
        const auto b = Choose(logits, p, {5, 0, i}, LogProbsMode::kProcessed, context);
        EXPECT_EQ(a.token, b.token) << "asking for another log-probability changed the token";
        if (penalty == 1 && !filtered) {
          EXPECT_EQ(a.log_prob, b.log_prob);
        }
      }
    }
  }
  plain.temperature = 0;
  const auto greedy = Choose(logits, plain, {}, LogProbsMode::kPolicy);
  EXPECT_EQ(greedy.log_prob, Choose(logits, plain, {}, LogProbsMode::kRaw).log_prob);
}

TEST(SamplerTest, TheRepetitionPenaltyIsHuggingFaces) {
  SamplingParams p;
  p.temperature = 0;
  p.repetition_penalty = 2;
  // 3 becomes 1.5 and -1 becomes -2, however often they occurred.
  const auto chosen = Choose({3, 2, -1}, p, {}, LogProbsMode::kProcessed, {0, 0, 2});
  EXPECT_EQ(chosen.token, 1);
  EXPECT_NEAR(chosen.log_prob, -std::log(1 + std::exp(-0.5) + std::exp(-4.0)), 1e-6);
  const auto raw = Choose({3, 2, -1}, p, {}, LogProbsMode::kRaw, {0, 0, 2});
  EXPECT_NEAR(raw.log_prob, 2 - 3 - std::log(1 + std::exp(-1.0) + std::exp(-4.0)), 1e-6);
}

TEST(SamplerTest, EveryPartOfADrawCounts) {
  std::set<double> draws;
  int count = 0;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    for (uint64_t prompt = 0; prompt < 4; ++prompt) {
      for (int sample = 0; sample < 4; ++sample) {
        for (int64_t position = 0; position < 4; ++position, ++count)
          draws.insert(UniformDraw(seed, {prompt, sample, position}));
      }
    }
  }
  EXPECT_EQ(draws.size(), static_cast<size_t>(count));
  EXPECT_EQ(UniformDraw(3, {9, 2, 7}), UniformDraw(3, {9, 2, 7}));
}

TEST(SamplerTest, BrokenLogitsAreAnErrorThatNamesTheToken) {
  Sampler::Workspace workspace;
  const Sampler sampler(LogProbsMode::kRaw);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const std::vector<float> logits = {0, 1, bad, 2};
    const auto chosen = sampler.Choose(logits, {}, {}, {}, workspace);
    ASSERT_FALSE(chosen.ok());
    EXPECT_NE(chosen.status().message().find("token 2"), std::string::npos);
  }
}

TEST(SamplerTest, TheLikeliestAreThoseOfASort) {
  std::vector<float> logits(500);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>((i * 7919) % 101) / 9;
  std::vector<int32_t> ids(logits.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  const auto found = LikeliestOf(logits, 20);
  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found->size(), 20u);
  for (size_t i = 0; i < found->size(); ++i) {
    EXPECT_EQ((*found)[i].token, ids[i]);
    EXPECT_EQ((*found)[i].log_prob, *LogProbOf(logits, ids[i]));
  }
  EXPECT_EQ(LikeliestOf(std::vector<float>{1, 2}, 20)->size(), 2u);
}

TEST(SamplingParamsTest, EveryProblemIsNamed) {
  SamplingParams p;
  EXPECT_TRUE(p.Validate().empty());
  p.temperature = -1;
  p.top_k = 0;
  p.top_p = 0;
  p.min_p = 2;
  p.repetition_penalty = 0;
  p.max_tokens = 0;
  p.stop = {""};
  p.likeliest = 21;
  EXPECT_EQ(p.Validate().size(), 8u);
}

// Vocabularies are padded; an id that no token has would end up in texts and train the padding.
TEST(SamplerTest, IdsBeyondTheVocabularyAreNeverChosen) {
  std::vector<float> logits(300);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 7) - 1.5f;
  // The padding is far likelier than anything else.
  for (size_t i = 200; i < logits.size(); ++i) logits[i] = 40;
  const std::vector<float> known(logits.begin(), logits.begin() + 200);
  SamplingParams greedy, sampled, filtered;
  greedy.temperature = 0;
  sampled.temperature = filtered.temperature = 0.7;
  filtered.top_k = 20;
  filtered.top_p = 0.8;
  for (const SamplingParams& p : {greedy, sampled, filtered}) {
    for (int64_t i = 0; i < 200; ++i) {
      const Draw draw{1, 2, i};
      const ChosenToken alone = Choose(known, p, draw, LogProbsMode::kProcessed);
      const ChosenToken padded = ChooseOf(200, logits, p, LogProbsMode::kProcessed, draw);
      EXPECT_EQ(padded.token, alone.token);
      // Of the policy it is the probability that the trainer computes, of all logits.
      const ChosenToken policy = ChooseOf(200, logits, p, LogProbsMode::kPolicy, draw);
      EXPECT_EQ(policy.token, alone.token);
      const double scale = p.temperature == 0 ? 1 : 1 / p.temperature;
      double sum = 0;
      for (const float logit : logits) sum += std::exp((logit - 40) * scale);
      const double expected =
          (logits[static_cast<size_t>(policy.token)] - 40) * scale - std::log(sum);
      EXPECT_NEAR(policy.log_prob, expected, 1e-4);
    }
  }
  // Nothing changes where nothing is left out.
  EXPECT_EQ(ChooseOf(200, known, sampled, LogProbsMode::kPolicy).log_prob,
            Choose(known, sampled, {}, LogProbsMode::kPolicy).log_prob);
}

}  // namespace
}  // namespace keel::rollout
