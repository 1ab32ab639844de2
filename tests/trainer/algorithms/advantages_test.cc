// Advantages, KL penalty and rollout correction against values worked out by hand.

#include "trainer/algorithms/advantages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "trainer/algorithms/entropy_control.h"
#include "trainer/algorithms/kl.h"
#include "trainer/algorithms/rollout_correction.h"

namespace keel::trainer::rl {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::Pointwise;

constexpr float kTolerance = 1e-6f;

// Owns what a PackedView looks at.
struct Packed {
  std::vector<int64_t> boundaries;
  std::vector<uint8_t> mask;
  PackedView view() const { return {boundaries, mask}; }
};

// One token a response.
Packed Singles(size_t n) {
  Packed packed{{0}, std::vector<uint8_t>(n, 1)};
  for (size_t i = 1; i <= n; ++i) packed.boundaries.push_back(static_cast<int64_t>(i));
  return packed;
}

std::vector<float> OfGroup(AdvantageEstimator estimator, const std::vector<float>& rewards,
                           bool by_std = true, std::vector<int64_t> groups = {}) {
  const Packed packed = Singles(rewards.size());
  if (groups.empty()) groups.assign(rewards.size(), 7);
  AdvantageInputs in;
  in.responses = packed.view();
  in.rewards = rewards;
  in.groups = groups;
  return ComputeAdvantages(in, {estimator, 1, 1, by_std}).advantages;
}

testing::Matcher<std::vector<float>> Near(std::vector<float> values) {
  return Pointwise(FloatNear(kTolerance), values);
}

TEST(AdvantagesTest, GroupEstimators) {
  using E = AdvantageEstimator;
  const float a = 0.866024f;
  EXPECT_THAT(OfGroup(E::kGrpo, {1, 0, 0, 1}), Near({a, -a, -a, a}));
  EXPECT_THAT(OfGroup(E::kGrpo, {1, 0, 0, 1}, false), Near({0.5f, -0.5f, -0.5f, 0.5f}));
  EXPECT_THAT(OfGroup(E::kGrpo, {1, 0, 0, 0}),
              Near({1.499997f, -0.499999f, -0.499999f, -0.499999f}));
  const float r = 0.666667f;
  EXPECT_THAT(OfGroup(E::kRloo, {1, 0, 0, 1}), Near({r, -r, -r, r}));
}

TEST(AdvantagesTest, EqualRewardsGiveExactlyNothing) {
  for (const float score : {0.0f, 1.0f, 0.1f, -0.7f}) {
    for (const size_t n : {size_t{2}, size_t{3}, size_t{8}}) {
      const std::vector<float> rewards(n, score);
      for (const auto estimator : {AdvantageEstimator::kGrpo, AdvantageEstimator::kRloo})
        EXPECT_THAT(OfGroup(estimator, rewards), testing::Each(0.0f)) << score << " x " << n;
    }
  }
}

// As verl: mean 0 and deviation 1, so the score itself.
TEST(AdvantagesTest, GroupOfOneKeepsItsScore) {
  EXPECT_THAT(OfGroup(AdvantageEstimator::kGrpo, {0.5f}), Near({0.5f}));
  EXPECT_THAT(OfGroup(AdvantageEstimator::kRloo, {0.5f}), Near({0.5f}));
}

// Others of its prompt were excluded, so that its score has nothing to be compared with: as a raw
// score it would be pushed up, or down, for no reason of its own.
TEST(AdvantagesTest, TheLastOfALargerGroupGetsNothing) {
  using E = AdvantageEstimator;
  // Group 3: one of three is left. Group 8: two of three. Group 9: its only one.
  Packed packed = Singles(7);
  packed.mask = {0, 1, 0, 1, 0, 1, 1};
  const std::vector<float> rewards = {0, 1.75f, 0, 1, 0, 0, 0.5f};
  const std::vector<int64_t> groups = {3, 3, 3, 8, 8, 8, 9};
  AdvantageInputs in;
  in.responses = packed.view();
  in.rewards = rewards;
  in.groups = groups;
  const auto of = [&](E estimator, bool by_std = true) {
    return ComputeAdvantages(in, {estimator, 1, 1, by_std}).advantages;
  };
  const float d = 0.5f / 0.70710778f;
  EXPECT_THAT(of(E::kGrpo), Near({0, 0, 0, d, 0, -d, 0.5f}));
  EXPECT_THAT(of(E::kGrpo, false), Near({0, 0, 0, 0.5f, 0, -0.5f, 0.5f}));
  EXPECT_THAT(of(E::kRloo), Near({0, 0, 0, 1, 0, -1, 0.5f}));
  // Four count, three of which score: the factor is 4 / 3.
  EXPECT_THAT(of(E::kGpg), Near({0, 0, 0, 2 / 3.0f, 0, -2 / 3.0f, 2 / 3.0f}));
  // Whitened with the others: what it had before is a difference of 0 from its group's mean.
  const auto whitened = of(E::kReinforcePlusPlusBaseline);
  EXPECT_NEAR(whitened[1], (whitened[3] + whitened[5]) / 2, kTolerance);
}

// The best of a prompt's responses has what it is better by; of two best ones neither.
TEST(AdvantagesTest, PassAtKByHand) {
  const auto estimator = AdvantageEstimator::kGrpoPassk;
  EXPECT_THAT(OfGroup(estimator, {0.25f, 1, 0}, false), Near({0, 0.75f, 0}));
  EXPECT_THAT(OfGroup(estimator, {1, 0, 1}, false), Near({0, 0, 0}));
  const float deviation = std::sqrt(0.5f);
  EXPECT_THAT(OfGroup(estimator, {1, 0}), Near({1 / (deviation + 1e-6f), 0}));
  EXPECT_THAT(OfGroup(estimator, {-3, -1}, false), Near({0, 2}));
  EXPECT_THROW(OfGroup(estimator, {1}), Error);
}

// Longer responses weigh more in the baseline.
TEST(AdvantagesTest, OpoWeighsByLength) {
  const Packed packed{{0, 3, 4}, {1, 1, 1, 1}};
  const std::vector<float> rewards = {0, 0, 1, 3};
  const std::vector<int64_t> groups = {0, 0};
  AdvantageInputs in{packed.view(), rewards, groups, {}, {}};
  EXPECT_THAT(ComputeAdvantages(in, {AdvantageEstimator::kOpo}).advantages,
              Near({-0.5f, -0.5f, -0.5f, 1.5f}));
  EXPECT_THAT(OfGroup(AdvantageEstimator::kOpo, {0.5f}), Near({0.5f}));
}

// verl's two names for RLOO part where a prompt has one response.
TEST(AdvantagesTest, VectorizedNamesByHand) {
  using E = AdvantageEstimator;
  EXPECT_EQ(OfGroup(E::kGrpoVectorized, {1, 0, 0.5f}), OfGroup(E::kGrpo, {1, 0, 0.5f}));
  EXPECT_EQ(OfGroup(E::kRlooVectorized, {1, 0, 0.5f}), OfGroup(E::kRloo, {1, 0, 0.5f}));
  EXPECT_THAT(OfGroup(E::kRlooVectorized, {0.5f}), Near({0}));
}

// Each kind of reward is normalized by itself, so that the larger one does not drown the other.
TEST(AdvantagesTest, GdpoNormalizesEachReward) {
  const Packed packed = Singles(4);
  const std::vector<float> rewards(4);
  const std::vector<int64_t> groups(4);
  const std::vector<std::vector<double>> components = {{1, 0, 0, 1}, {1000, 0, 1000, 0}};
  AdvantageInputs in{packed.view(), rewards, groups, {}, {}};
  in.components = components;
  AdvantageOptions options;
  options.estimator = AdvantageEstimator::kGdpo;
  const float up = std::sqrt(1.5f);  // whitened: 2a, 0, 0, -2a with deviation a * sqrt(8 / 3)
  EXPECT_THAT(ComputeAdvantages(in, options).advantages,
              Pointwise(FloatNear(1e-5f), std::vector<float>{up, -up, 0, 0}));
  options.component_weights = {1, 0};
  const float half = std::sqrt(0.75f);
  EXPECT_THAT(ComputeAdvantages(in, options).advantages,
              Pointwise(FloatNear(1e-5f), std::vector<float>{half, -half, -half, half}));
  options.component_weights = {1};
  EXPECT_THROW(ComputeAdvantages(in, options), Error);
  in.components = {};
  EXPECT_THROW(ComputeAdvantages(in, options), Error);
}

// Two responses with energies 1, 2 and 1, 2, 3, where pi is 0: the baseline of a place is the mean
// of their returns by energy, and where the longer goes on alone there is none.
TEST(AdvantagesTest, OptimalTokenBaselineByHand) {
  const Packed packed{{0, 2, 5, 5}, {1, 1, 1, 1, 1}};
  const std::vector<float> rewards = {0, 1, 2, 0, 4};
  const std::vector<int64_t> groups = {0, 0, 0};
  const std::vector<float> log_probs(5, -100.0f), squares(5, 0.0f);
  AdvantageInputs in{packed.view(), rewards, groups, {}, {}};
  EXPECT_THROW(ComputeAdvantages(in, {AdvantageEstimator::kOptimalTokenBaseline}), Error);
  in.log_probs = log_probs;
  in.sum_pi_squared = squares;
  for (const auto estimator :
       {AdvantageEstimator::kOptimalTokenBaseline, AdvantageEstimator::kTirOptimalTokenBaseline}) {
    const Advantages found = ComputeAdvantages(in, {estimator});
    EXPECT_THAT(found.returns, Near({1, 1, 6, 4, 4}));
    EXPECT_THAT(found.advantages, Near({-2.5f, -1.5f, 2.5f, 1.5f, 4}));
  }
  // A token of the policy that is certain moves nothing, and weighs nothing.
  const std::vector<float> certain = {0, -100, -100, -100, -100}, one = {1, 0, 0, 0, 0};
  in.log_probs = certain;
  in.sum_pi_squared = one;
  EXPECT_THAT(ComputeAdvantages(in, {AdvantageEstimator::kOptimalTokenBaseline}).advantages,
              Near({-5, -2, 0, 1, 4}));
  // Whatever both numbers were rounded by, a baseline is no further away than the returns are.
  for (const float rounded : {1 - 1.2e-7f, 1.0f, 1 + 1.2e-7f}) {
    const std::vector<float> sure(5, -6e-8f), sums = {rounded, 1, 1 - 6e-8f, rounded, 1};
    in.log_probs = sure;
    in.sum_pi_squared = sums;
    for (const float advantage :
         ComputeAdvantages(in, {AdvantageEstimator::kOptimalTokenBaseline}).advantages) {
      EXPECT_GE(advantage, -6) << rounded;
      EXPECT_LE(advantage, 6) << rounded;
    }
  }
  in.log_probs = certain;
  in.sum_pi_squared = one;
  // The only response keeps its returns; the last one of several has nothing.
  const std::vector<int64_t> alone = {0, 1, 1};
  in.groups = alone;
  EXPECT_THAT(ComputeAdvantages(in, {AdvantageEstimator::kOptimalTokenBaseline}).advantages,
              Near({1, 1, 0, 0, 0}));
}

// Places of policy tokens alone, or with what a tool said between them.
TEST(AdvantagesTest, OptimalTokenBaselineOverTurns) {
  const Packed packed{{0, 3, 5}, {1, 0, 1, 1, 1}};
  const std::vector<float> rewards = {0, 0, 2, 0, 4};
  const std::vector<int64_t> groups = {0, 0};
  const std::vector<float> log_probs(5, -100.0f), squares(5, 0.0f);
  AdvantageInputs in{packed.view(), rewards, groups, {}, {}, log_probs, squares};
  EXPECT_THAT(ComputeAdvantages(in, {AdvantageEstimator::kTirOptimalTokenBaseline}).advantages,
              Near({-1, 0, -1, 1, 1}));
  // By place: the tool's token stands beside the second answer's last.
  EXPECT_THAT(ComputeAdvantages(in, {AdvantageEstimator::kOptimalTokenBaseline}).advantages,
              Near({-1, 0, 0, 1, 0}));
}

TEST(AdvantagesTest, GroupsDoNotMix) {
  EXPECT_THAT(OfGroup(AdvantageEstimator::kGrpo, {1, 10, 0, 30}, false, {3, 8, 3, 8}),
              Near({0.5f, -10, -0.5f, 10}));
}

struct GaeCase {
  std::vector<uint8_t> mask;
  std::vector<float> rewards, values;
};

// Unwhitened advantages: returns less values.
std::vector<float> GaeOf(const GaeCase& c, double gamma, double lam) {
  const Packed packed{{0, static_cast<int64_t>(c.mask.size())}, c.mask};
  AdvantageInputs in;
  in.responses = packed.view();
  in.rewards = c.rewards;
  in.values = c.values;
  const Advantages out = ComputeAdvantages(in, {AdvantageEstimator::kGae, gamma, lam, true});
  std::vector<float> plain;
  for (size_t t = 0; t < c.mask.size(); ++t)
    plain.push_back(c.mask[t] != 0 ? out.returns[t] - c.values[t] : out.returns[t]);
  return plain;
}

TEST(AdvantagesTest, GaeByHand) {
  const GaeCase plain{{1, 1, 1}, {0, 0, 1}, {0.5f, 0.4f, 0.3f}};
  EXPECT_THAT(GaeOf(plain, 1, 0.95), Near({0.43675f, 0.565f, 0.7f}));
  EXPECT_NEAR(GaeOf(plain, 0.99, 0.95)[0], 0.418307, kTolerance);
}

TEST(AdvantagesTest, MaskedTokensChangeNothingAndLoseNoReward) {
  const std::vector<float> expected = {0.43675f, 0.565f, 0.7f};
  // A masked token in the middle, with a value that must not be seen.
  EXPECT_THAT(GaeOf({{1, 0, 1, 1}, {0, 0, 0, 1}, {0.5f, 9, 0.4f, 0.3f}}, 1, 0.95),
              Near({expected[0], 0, expected[1], expected[2]}));
  // The reward stands behind the last token of the policy.
  EXPECT_THAT(GaeOf({{1, 1, 1, 0, 0}, {0, 0, 0, 0, 1}, {0.5f, 0.4f, 0.3f, 9, 9}}, 1, 0.95),
              Near({expected[0], expected[1], expected[2], 0, 0}));
  // Before the first one: it reaches the first.
  const auto leading = GaeOf({{0, 1}, {2, 1}, {9, 0.5f}}, 1, 1);
  EXPECT_THAT(leading, Near({0, 2.5f}));
  for (const auto estimator :
       {AdvantageEstimator::kReinforcePlusPlus, AdvantageEstimator::kRemax}) {
    const Packed packed{{0, 4}, {1, 0, 1, 0}};
    const std::vector<float> rewards = {0, 0.25f, 0, 1};
    const std::vector<float> baselines = {0};
    AdvantageInputs in;
    in.responses = packed.view();
    in.rewards = rewards;
    in.baselines = baselines;
    EXPECT_THAT(ComputeAdvantages(in, {estimator, 1, 1, true}).returns, Near({1.25f, 0, 1, 0}));
  }
}

TEST(AdvantagesTest, EmptyResponsesTakeNoPartInTheirGroup) {
  const Packed packed{{0, 1, 1, 2, 4}, {1, 1, 0, 0}};
  const std::vector<float> rewards = {1, 0, 100, 100};
  const std::vector<int64_t> groups = {1, 1, 1, 1};
  AdvantageInputs in;
  in.responses = packed.view();
  in.rewards = rewards;
  in.groups = groups;
  EXPECT_THAT(ComputeAdvantages(in, {AdvantageEstimator::kGrpo, 1, 1, false}).advantages,
              Near({0.5f, -0.5f, 0, 0}));
  const std::vector<double> scores = {3, 4, 5, 6};
  EXPECT_THAT(PlaceScores(packed.view(), scores), ElementsAre(3, 5, 0, 0));
}

TEST(AdvantagesTest, WhitenedOverPolicyTokensOfTheBatch) {
  const Packed packed{{0, 2, 4}, {1, 1, 1, 0}};
  const std::vector<float> rewards = {0, 1, 2, 0};
  AdvantageInputs in;
  in.responses = packed.view();
  in.rewards = rewards;
  // Returns 1, 1, 2: mean 4/3, variance (n - 1) 1/3.
  const float low = static_cast<float>((1 - 4.0 / 3) / std::sqrt(1.0 / 3));
  EXPECT_THAT(
      ComputeAdvantages(in, {AdvantageEstimator::kReinforcePlusPlus, 1, 1, true}).advantages,
      Near({low, low, -2 * low, 0}));
}

// What the table says an estimator needs is what it asks for, and what it takes changes something.
TEST(AdvantagesTest, TraitsAreWhatTheEstimatorsNeed) {
  const Packed packed = Singles(4);
  const std::vector<float> rewards = {1, 2, 0, 5}, values = {0, 1, 0, 2}, baselines = {1, 1, 0, 3};
  const std::vector<int64_t> groups = {0, 0, 1, 1};
  const Packed one{{0, 4}, {1, 1, 1, 1}};
  const std::vector<int64_t> group = {0};
  const std::vector<float> log_probs(4, -1.0f), squares(4, 0.3f), weights(4, 1.0f);
  const std::vector<std::vector<double>> components = {{1, 0, 2, 1}}, component = {{1}};
  for (const auto& [estimator, name] : kEnumNames<AdvantageEstimator>) {
    const AdvantageTraits traits = TraitsOf(estimator);
    const AdvantageInputs all{packed.view(), rewards, groups,  values,    baselines,
                              log_probs,     squares, weights, components};
    AdvantageInputs without = all;
    const auto refused = [&] {
      try {
        ComputeAdvantages(without, {.estimator = estimator});
      } catch (const Error&) {
        return true;
      }
      return false;
    };
    EXPECT_FALSE(refused()) << name;
    without.values = {};
    EXPECT_EQ(refused(), traits.values) << name;
    without = all;
    without.baselines = {};
    EXPECT_EQ(refused(), traits.greedy_baseline) << name;
    without = all;
    without.groups = {};
    EXPECT_EQ(refused(), traits.groups) << name;
    without = all;
    without.sum_pi_squared = {};
    EXPECT_EQ(refused(), traits.sum_pi_squared) << name;
    without = all;
    without.log_probs = {};
    EXPECT_EQ(refused(), traits.sum_pi_squared) << name;
    without = all;
    without.components = {};
    EXPECT_EQ(refused(), traits.components) << name;

    AdvantageInputs long_one = all;
    long_one.responses = one.view();
    long_one.groups = group;
    long_one.baselines = {baselines.data(), 1};
    long_one.components = component;
    without = long_one;
    EXPECT_EQ(refused(), traits.pairs) << name;
    if (traits.pairs) continue;
    const auto with = [&](double gamma, double lam) {
      return ComputeAdvantages(long_one, {estimator, gamma, lam}).returns;
    };
    EXPECT_EQ(with(0.5, 1) != with(1, 1), traits.gamma) << name;
    EXPECT_EQ(with(1, 0.5) != with(1, 1), traits.lam) << name;
  }
}

TEST(KlTest, Estimators) {
  EXPECT_NEAR(EstimateKl(KlEstimator::kK1, -1.0f, -1.5f), 0.5, kTolerance);
  EXPECT_NEAR(EstimateKl(KlEstimator::kK2, -1.0f, -1.5f), 0.125, kTolerance);
  EXPECT_NEAR(EstimateKl(KlEstimator::kK3, -1.0f, -1.5f), 0.106531, kTolerance);
  EXPECT_NEAR(EstimateKl(KlEstimator::kAbs, -1.5f, -1.0f), 0.5, kTolerance);
  for (const auto kind : {KlEstimator::kK1, KlEstimator::kAbs, KlEstimator::kK2, KlEstimator::kK3})
    EXPECT_EQ(EstimateKl(kind, -0.7f, -0.7f), 0.0f);
  EXPECT_EQ(EstimateKl(KlEstimator::kK3, -90.0f, 0.0f), 10.0f);
}

// Of some estimators there are two names, and a "+" is said by the name alone.
TEST(KlTest, NamesAreVerls) {
  const std::map<std::string, KlEstimator> estimators = {
      {"kl", KlEstimator::kK1},  {"k1", KlEstimator::kK1}, {"abs", KlEstimator::kAbs},
      {"mse", KlEstimator::kK2}, {"k2", KlEstimator::kK2}, {"low_var_kl", KlEstimator::kK3},
      {"k3", KlEstimator::kK3}};
  for (const auto& [value, name] : kEnumNames<KlName>) {
    const bool plus = name.back() == '+';
    EXPECT_EQ(KindOf(value).straight_through, plus) << name;
    EXPECT_EQ(KindOf(value).estimator, estimators.at(std::string(name, 0, name.size() - plus)));
  }
}

TEST(KlTest, ControllerKeepsItsStateOverRestarts) {
  KlControllerOptions options{KlControl::kAdaptive, 0.2, 100, 0.1};
  KlController controller(options);
  controller.Update(0.5, 50);  // error cut to 0.2
  EXPECT_DOUBLE_EQ(controller.coefficient(), 0.2 * 1.1);
  controller.Update(0.09, 100);
  EXPECT_DOUBLE_EQ(controller.coefficient(), 0.2 * 1.1 * 0.9);
  KlController resumed(options);
  ASSERT_TRUE(resumed.Restore(*ParseJson(controller.State().dump(), "state")).ok());
  EXPECT_EQ(resumed.coefficient(), controller.coefficient());
  EXPECT_FALSE(resumed.Restore(Json::object()).ok());
  EXPECT_FALSE(resumed.Restore({{"kl_coef", -1.0}}).ok());
  KlController fixed({KlControl::kFixed, 0.3, 100, 0.1});
  fixed.Update(9, 1000);
  ASSERT_TRUE(fixed.Restore(controller.State()).ok());
  EXPECT_EQ(fixed.coefficient(), 0.3);
  KlController later(options);
  ASSERT_TRUE(later.Restore(fixed.State()).ok());
  EXPECT_EQ(later.coefficient(), 0.2);
}

// Its weights from update to update are in reference_test.cc.
TEST(EntropyControllerTest, OfAChangedDocumentItSaysWhatIsWrong) {
  EntropyController controller({0.1, 0, 1, 0.01, 0.2});
  EXPECT_EQ(controller.Applied(), 0);  // nothing is known of the policy yet
  const Json begun = controller.State();
  ASSERT_TRUE(controller.Restore(nullptr).ok());  // of a run that had none
  EXPECT_EQ(controller.State(), begun);
  for (const Json& wrong : {Json::array(), Json({{"entropy_coeff", 0.1}}),
                            Json({{"entropy_coeff", -0.1}, {"last_entropy", 1.0}}),
                            Json({{"entropy_coeff", "0.1"}, {"last_entropy", 1.0}}),
                            Json({{"entropy_coeff", 0.1}, {"last_entropy", "1"}})}) {
    const Status status = controller.Restore(wrong);
    EXPECT_EQ(status.code(), StatusCode::kInvalidData) << wrong;
    EXPECT_TRUE(status.message().starts_with("entropy controller")) << status.message();
    EXPECT_EQ(controller.State(), begun);
  }
}

TEST(KlTest, PenaltyComesOffTheRewards) {
  const Packed packed{{0, 2, 3, 4}, {1, 1, 1, 0}};
  const std::vector<float> old = {-1, -1, -2, 50};
  const std::vector<float> ref = {-1.5f, -2, -2, -50};
  std::vector<float> rewards = {0, 1, 1, 0};
  // Means by response: 0.75 and 0; the third has no token that counts.
  EXPECT_NEAR(ApplyKlPenalty(packed.view(), KlEstimator::kK1, old, ref, 0.1, rewards), 0.375, 1e-7);
  EXPECT_THAT(rewards, Near({-0.05f, 0.9f, 1, 0}));
}

TEST(RolloutCorrectionTest, WeightsAreTruncated) {
  const Packed packed{{0, 3}, {1, 1, 0}};
  const std::vector<float> trainer = {-0.1f, -1, 0};
  const std::vector<float> rollout = {-1, -1, -50};
  for (const auto& [threshold, expected] :
       {std::pair<std::string, float>{"5.0", 2.459603f}, {"2.0", 2.0f}, {"0.5_2.0", 0.0f}}) {
    const auto options =
        RolloutCorrectionOptions::Parse(ImportanceLevel::kToken, threshold, false, "", "");
    ASSERT_TRUE(options.ok()) << options.status().message();
    const auto out = CorrectRollout(packed.view(), trainer, rollout, *options);
    EXPECT_THAT(out.weights, Near({expected, 1, 0})) << threshold;
    EXPECT_EQ(out.mask, packed.mask);
  }
}

TEST(RolloutCorrectionTest, TheLargestSquaresGoUntilTheirMeanIsSmall) {
  // Squares of the log ratios: 0.25, 0.04, (masked), 1, 0.01, 0.01.
  const Packed packed{{0, 3, 6}, {1, 1, 0, 1, 1, 1}};
  const std::vector<float> trainer = {-1.5f, -1.2f, -9, -2, -0.9f, -1.1f};
  const std::vector<float> rollout = {-1, -1, 0, -1, -1, -1};
  RolloutCorrectionOptions options;
  const auto mask = [&](double threshold) {
    options.m2po_threshold = threshold;
    return CorrectRollout(packed.view(), trainer, rollout, options).mask;
  };
  EXPECT_EQ(mask(0.27), packed.mask) << "1.31 / 5 = 0.262 is small enough";
  EXPECT_EQ(mask(0.1), (std::vector<uint8_t>{1, 1, 0, 0, 1, 1})) << "0.31 / 4 = 0.0775";
  EXPECT_EQ(mask(0.05), (std::vector<uint8_t>{0, 1, 0, 0, 1, 1})) << "0.06 / 3 = 0.02";
  EXPECT_EQ(mask(0.001), (std::vector<uint8_t>{0, 0, 0, 0, 0, 1})) << "one token stays";
  const auto metrics = CorrectRollout(packed.view(), trainer, rollout, options).metrics;
  EXPECT_NEAR(metrics.at("rollout_corr/m2po_second_moment"), 0.262, 1e-6);
  EXPECT_NEAR(metrics.at("rollout_corr/m2po_second_moment_kept"), 0.01, 1e-6);
  EXPECT_NEAR(metrics.at("rollout_corr/m2po_masked_fraction"), 0.8, 1e-6);
  // What rules have rejected stays out.
  auto both =
      ValueOrThrow(RolloutCorrectionOptions::Parse(std::nullopt, "2", false, "token_k2", "0.1"));
  both.m2po_threshold = 0.001;
  EXPECT_EQ(CorrectRollout(packed.view(), trainer, rollout, both).mask,
            (std::vector<uint8_t>{0, 0, 0, 0, 0, 1}));
  // And counts no more: 0.06 / 3 of those that are left, where 0.31 / 4 with them was too much.
  both.m2po_threshold = 0.03;
  const RolloutCorrection found = CorrectRollout(packed.view(), trainer, rollout, both);
  EXPECT_EQ(found.mask, (std::vector<uint8_t>{0, 1, 0, 0, 1, 1}));
  EXPECT_NEAR(found.metrics.at("rollout_corr/m2po_second_moment"), 0.02, 1e-6);
  EXPECT_EQ(found.metrics.at("rollout_corr/m2po_masked_fraction"), 0);
}

TEST(RolloutCorrectionTest, SameProbabilitiesGiveOnesAndZeroGaps) {
  const Packed packed{{0, 2, 3}, {1, 1, 1}};
  const std::vector<float> log_probs = {-0.3f, -2, -1};
  const auto options = RolloutCorrectionOptions::Parse(ImportanceLevel::kSequence, "2", true,
                                                       "token_k1,seq_mean_k3", "0.9_1.1,0.1");
  const auto out = CorrectRollout(packed.view(), log_probs, log_probs, *options);
  EXPECT_THAT(out.weights, testing::Each(1.0f));
  EXPECT_EQ(out.mask, packed.mask);
  EXPECT_EQ(out.metrics.at("rollout_corr/kl"), 0);
  EXPECT_EQ(out.metrics.at("rollout_corr/k3_kl"), 0);
  EXPECT_EQ(out.metrics.at("rollout_corr/rollout_rs_masked_fraction"), 0);
  EXPECT_EQ(out.metrics.at("rollout_corr/chi2_seq"), 0);
}

TEST(RolloutCorrectionTest, RefusesWhatItCannotRead) {
  const auto message = [](const char* threshold, const char* rs, const char* rs_threshold) {
    return RolloutCorrectionOptions::Parse({}, threshold, false, rs, rs_threshold)
        .status()
        .message();
  };
  EXPECT_EQ(message("2.0", "", ""), "");
  EXPECT_THAT(message("-1", "seq_k1", "1"),
              testing::AllOf(testing::HasSubstr("rollout_rs: 'seq_k1'"),
                             testing::HasSubstr("rollout_is_threshold is '-1'")));
  EXPECT_THAT(message("2_1", "", ""), testing::HasSubstr("2_1"));
  EXPECT_THAT(message("nan", "", ""), testing::HasSubstr("nan"));
  EXPECT_THAT(message("2", "token_k4", "1"), testing::HasSubstr("token_k4"));
  EXPECT_THAT(message("2", "token_k3", "1_2"), testing::HasSubstr("one positive number"));
  EXPECT_THAT(message("2", "token_k1,token_k3", "1,2,3"), testing::HasSubstr("3 entries"));
  EXPECT_THAT(message("2", "", "1"), testing::HasSubstr("rollout_rs is null"));
}

}  // namespace
}  // namespace keel::trainer::rl
