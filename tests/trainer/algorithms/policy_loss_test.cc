// Losses against values worked out by hand (tolerance 1e-6), and what must hold of any split.

#include "trainer/algorithms/policy_loss.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>

#include "trainer/algorithms/dpo_loss.h"
#include "trainer/algorithms/value_loss.h"

namespace keel::trainer::rl {
namespace {

constexpr double kTolerance = 1e-6;

at::Tensor Vector(const std::vector<double>& values) {
  return at::tensor(values, at::kDouble).to(at::kFloat);
}

TokenLayout Whole(int64_t tokens) { return {at::ones({tokens}, at::kBool), {0, tokens}}; }

// Loss of one token with a ratio and an advantage.
double OneToken(double ratio, double advantage, const PolicyLossOptions& options,
                double log_prob = -0.7) {
  PolicyLossInputs in;
  in.layout = Whole(1);
  in.log_probs = Vector({log_prob});
  in.old_log_probs = Vector({log_prob - std::log(ratio)});
  in.advantages = Vector({advantage});
  return PolicyLoss(in, options, {1, 1, 1}).loss.item<double>();
}

TEST(PolicyLossTest, ClippedByHand) {
  PolicyLossOptions options;
  EXPECT_NEAR(OneToken(1.5, 1, options), -1.2, kTolerance);
  EXPECT_NEAR(OneToken(0.5, 1, options), -0.5, kTolerance);
  EXPECT_NEAR(OneToken(1.5, -1, options), 1.5, kTolerance);
  EXPECT_NEAR(OneToken(0.5, -1, options), 0.8, kTolerance);
  EXPECT_NEAR(OneToken(5, -1, options), 3, kTolerance);
  options.clip_ratio_high = 0.28;
  EXPECT_NEAR(OneToken(1.5, 1, options), -1.28, kTolerance);
  options = {};
  options.mode = PolicyLossMode::kCispo;
  EXPECT_NEAR(OneToken(1.5, 1, options), 0.84, kTolerance);
  options.mode = PolicyLossMode::kGpg;
  EXPECT_NEAR(OneToken(1.5, 2, options), 1.4, kTolerance);
}

// Totals of all updates and of one begin with the same micro-batch's: a sum over ranks of either,
// in place, is of that one alone.
TEST(LossTotalsTest, WhatIsSummedInPlaceIsACopy) {
  const LossTotals<2> part(at::tensor({1.0, 2.0}, at::kDouble));
  LossTotals<2> of_step, of_update;
  of_step += part;
  of_update += part;
  of_update.On(at::kCPU).mul_(2);
  const std::array<double, 2> expected = {1.0, 2.0};
  for (const LossTotals<2>& totals : {part, of_step, of_update}) EXPECT_EQ(totals.Read(), expected);
  EXPECT_EQ(LossTotals<2>().Read(), (std::array<double, 2>{}));
}

TEST(PolicyLossTest, GspoRatioIsOfTheSequence) {
  PolicyLossInputs in;
  // A masked prompt token in front.
  in.layout = {at::tensor({0, 1, 1, 1}, at::kInt).to(at::kBool), {0, 4}};
  in.old_log_probs = Vector({9, -1, -1, -1});
  in.log_probs = Vector({0, -0.7, -1.1, -0.9}).requires_grad_();
  in.advantages = Vector({0, 1, 1, 1});
  PolicyLossOptions options;
  options.mode = PolicyLossMode::kGspo;
  const PolicyLossResult result = PolicyLoss(in, options, {3, 1, 1});
  EXPECT_NEAR(result.loss.item<double>(), -1.105171, kTolerance);
  result.loss.backward();
  // Each token moves the loss by ratio / tokens.
  EXPECT_TRUE(at::allclose(in.log_probs.grad(),
                           Vector({0, -1.105171 / 3, -1.105171 / 3, -1.105171 / 3}), 0,
                           kTolerance));
}

TEST(PolicyLossTest, FirstStepAfterGenerationIsExact) {
  PolicyLossInputs in;
  in.layout = Whole(3);
  in.log_probs = Vector({-0.3, -2.7, -1e-3}).requires_grad_();
  in.old_log_probs = in.log_probs.detach().clone();
  in.ref_log_probs = in.old_log_probs;
  in.advantages = Vector({1, -2, 0.5});
  in.chosen = at::zeros({3});
  using enum PolicyLossMode;
  for (const auto mode : {kVanilla, kGspo, kCispo, kDppoTv, kDppoKl, kSapo, kClipCov, kKlCov, kDro,
                          kVespo, kBypassMode}) {
    PolicyLossOptions options;
    options.mode = mode;
    options.dro_beta = 2;
    options.use_kl_loss = true;
    const PolicyLossResult result = PolicyLoss(in, options, {3, 1, 1});
    EXPECT_EQ(result.sums().ppo_kl, 0);
    EXPECT_EQ(result.sums().clipped, 0);
    EXPECT_EQ(result.sums().clipped_lower, 0);
    EXPECT_EQ(result.sums().kl_loss, 0);
    EXPECT_EQ(result.sums().tokens, 3);
    // Ratio 1: the plain policy gradient.
    in.log_probs.mutable_grad() = at::Tensor();
    result.loss.backward();
    EXPECT_TRUE(at::allclose(in.log_probs.grad(), -in.advantages / 3, 0, 2e-7)) << NameOf(mode);
  }
}

TEST(PolicyLossTest, KlByHandAndStraightThrough) {
  const at::Tensor ref = Vector({-1.5});
  for (const auto& [name, value, slope] : {std::tuple<const char*, double, double>{"k1", 0.5, 1},
                                           {"kl", 0.5, 1},
                                           {"k2", 0.125, 0.5},
                                           {"mse", 0.125, 0.5},
                                           {"k3", 0.106531, 1 - std::exp(-0.5)},
                                           {"abs", 0.5, 1},
                                           {"low_var_kl", 0.106531, 1 - std::exp(-0.5)},
                                           {"k1+", 0.5, 0.5},
                                           {"k3+", 0.106531, 0.5}}) {
    at::Tensor log_probs = Vector({-1.0}).requires_grad_();
    const KlKind kind = KindOf(*ParseName<KlName>(name));
    const at::Tensor kl = KlPenalty(log_probs, ref, kind);
    EXPECT_NEAR(kl.item<double>(), value, kTolerance) << name;
    EXPECT_NEAR(kl.item<double>(), EstimateKl(kind.estimator, -1.0f, -1.5f), 1e-7) << name;
    kl.sum().backward();
    EXPECT_NEAR(log_probs.grad().item<double>(), slope, kTolerance) << name;
  }
}

TEST(LossAggregationTest, ByHand) {
  const TokenLayout layout{at::ones({5}, at::kBool), {0, 4, 5}};
  const at::Tensor losses = Vector({1, 1, 1, 1, 3});
  const LossDenominators counts{5, 2, 4};
  const auto total = [&](LossAggregation mode) {
    return WeightedSum(losses, LossWeights(layout, mode, counts)).item<double>();
  };
  EXPECT_NEAR(total(LossAggregation::kTokenMean), 1.4, kTolerance);
  EXPECT_NEAR(total(LossAggregation::kTokenSum), 7, kTolerance);
  EXPECT_NEAR(total(LossAggregation::kSeqMeanTokenMean), 2.0, kTolerance);
  EXPECT_NEAR(total(LossAggregation::kSeqMeanTokenSum), 3.5, kTolerance);
  EXPECT_NEAR(total(LossAggregation::kSeqMeanTokenSumNorm), 3.5 / 4, kTolerance);
}

// Sequences of several lengths with masked prompts, one of them without any token that counts.
struct RandomBatch {
  std::vector<int64_t> boundaries = {0};
  at::Tensor mask, log_probs, old, ref, advantages, entropy, weights, chosen;

  RandomBatch() {
    at::manual_seed(3);
    std::vector<int> flags;
    for (const int length : {3, 7, 1, 12, 5, 4}) {
      for (int t = 0; t < length; ++t)
        flags.push_back(boundaries.size() != 4 && t >= length / 3 && t % 5 != 4 ? 1 : 0);
      boundaries.push_back(boundaries.back() + length);
    }
    mask = at::tensor(flags, at::kInt).to(at::kBool);
    const int64_t n = mask.size(0);
    log_probs = -at::rand({n}) * 3;
    old = log_probs + 0.4 * at::randn({n});
    ref = log_probs + 0.4 * at::randn({n});
    advantages = at::randn({n});
    entropy = at::rand({n});
    weights = at::rand({n}) + 0.5;
    chosen = at::rand({n}).lt(0.3).to(at::kFloat);
  }

  LossDenominators Counts() const {
    const at::Tensor bytes = mask.to(at::kByte).contiguous();
    return CountDenominators(
        {boundaries, {bytes.const_data_ptr<uint8_t>(), static_cast<size_t>(bytes.numel())}}, 16);
  }

  // Loss, gradients and sums of sequences [first, last), packed in that order.
  PolicyLossInputs Part(size_t first, size_t last, at::Tensor& leaf,
                        at::Tensor& leaf_entropy) const {
    const int64_t begin = boundaries[first], length = boundaries[last] - begin;
    PolicyLossInputs in;
    for (size_t s = first; s <= last; ++s) in.layout.boundaries.push_back(boundaries[s] - begin);
    in.layout.mask = mask.narrow(0, begin, length);
    in.log_probs = leaf = log_probs.narrow(0, begin, length).clone().requires_grad_();
    in.entropy = leaf_entropy = entropy.narrow(0, begin, length).clone().requires_grad_();
    in.old_log_probs = old.narrow(0, begin, length);
    in.ref_log_probs = ref.narrow(0, begin, length);
    in.advantages = advantages.narrow(0, begin, length);
    in.rollout_is_weights = weights.narrow(0, begin, length);
    in.chosen = chosen.narrow(0, begin, length);
    return in;
  }
};

TEST(PolicyLossTest, NoSplitChangesLossOrGradient) {
  const RandomBatch batch;
  const LossDenominators counts = batch.Counts();
  for (const auto& [value, mode] : kEnumNames<PolicyLossMode>) {
    for (const auto& [how, aggregation] : kEnumNames<LossAggregation>) {
      PolicyLossOptions options;
      options.mode = value;
      options.aggregation = how;
      options.dro_beta = 0.3;
      options.bypass = {BypassLoss::kReinforce,
                        ImportanceLevel::kSequence,
                        2,
                        std::nullopt,
                        {{RejectionTest::kTokenK1, 0.6, 1.6}, {RejectionTest::kSeqMaxK2, 0, 0.5}}};
      options.entropy_coeff = 0.1;
      options.use_kl_loss = true;
      const auto run = [&](const std::vector<size_t>& cuts) {
        PolicyLossSums::Totals totals;
        double loss = 0;
        std::vector<at::Tensor> gradients, entropy_gradients;
        for (size_t i = 0; i + 1 < cuts.size(); ++i) {
          at::Tensor leaf, leaf_entropy;
          const auto result =
              PolicyLoss(batch.Part(cuts[i], cuts[i + 1], leaf, leaf_entropy), options, counts);
          result.loss.backward();
          gradients.push_back(leaf.grad());
          entropy_gradients.push_back(leaf_entropy.grad());
          totals += result.totals;
          loss += result.loss.item<double>();
        }
        return std::tuple(loss, at::cat(gradients), at::cat(entropy_gradients),
                          PolicyLossSums::Of(totals.Read()));
      };
      const auto [loss, gradient, entropy_gradient, sums] = run({0, 6});
      EXPECT_EQ(sums.tokens, static_cast<double>(counts.tokens));
      EXPECT_GT(sums.rejected, 0);
      EXPECT_LT(sums.rejected, sums.tokens);
      EXPECT_TRUE(gradient.masked_select(batch.mask.logical_not()).eq(0).all().item<bool>());
      for (const std::vector<size_t>& cuts :
           {std::vector<size_t>{0, 1, 2, 3, 4, 5, 6}, {0, 2, 6}, {0, 5, 6}}) {
        const auto [part_loss, part_gradient, part_entropy, part_sums] = run(cuts);
        EXPECT_NEAR(part_loss, loss, 1e-6 * std::max(1.0, std::fabs(loss))) << mode;
        EXPECT_TRUE(at::equal(part_gradient, gradient)) << mode << " " << aggregation;
        EXPECT_TRUE(at::equal(part_entropy, entropy_gradient)) << mode << " " << aggregation;
        EXPECT_EQ(part_sums.clipped, sums.clipped);
        EXPECT_NEAR(part_sums.ppo_kl, sums.ppo_kl, 1e-5);
      }
    }
  }
}

TEST(PolicyLossTest, MaskedTokensAreNotLookedAt) {
  const RandomBatch batch;
  for (const auto& [value, mode] : kEnumNames<PolicyLossMode>) {
    at::Tensor leaf, leaf_entropy;
    const PolicyLossInputs clean = batch.Part(0, 6, leaf, leaf_entropy);
    PolicyLossOptions options;
    options.mode = value;
    options.use_kl_loss = true;
    options.entropy_coeff = 0.1;
    options.dro_beta = 0.3;
    const auto expected = PolicyLoss(clean, options, batch.Counts());
    expected.loss.backward();
    const at::Tensor gradient = leaf.grad().clone();

    PolicyLossInputs dirty = batch.Part(0, 6, leaf, leaf_entropy);
    const at::Tensor hidden = dirty.layout.mask.logical_not();
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (at::Tensor* tensor : {&dirty.old_log_probs, &dirty.ref_log_probs, &dirty.advantages,
                               &dirty.rollout_is_weights, &dirty.chosen})
      *tensor = tensor->masked_fill(hidden, nan);
    const auto found = PolicyLoss(dirty, options, batch.Counts());
    found.loss.backward();
    EXPECT_EQ(found.loss.item<float>(), expected.loss.item<float>()) << mode;
    EXPECT_TRUE(at::equal(leaf.grad(), gradient)) << mode;
  }
}

// A rank whose tokens are all rejected, with others to learn from elsewhere or with none at all.
TEST(PolicyLossTest, OfNothingToLearnFromLossAndGradientAreZero) {
  for (const int64_t tokens : {0, 4}) {
    for (const LossDenominators& counts : {LossDenominators{12, 3, 8}, LossDenominators{0, 0, 8}}) {
      for (const auto& [aggregation, how] : kEnumNames<LossAggregation>) {
        const TokenLayout layout{
            at::zeros({tokens}, at::kBool),
            tokens == 0 ? std::vector<int64_t>{0} : std::vector<int64_t>{0, 2, tokens}};
        const auto values = [&] {
          return at::full({tokens}, std::numeric_limits<float>::quiet_NaN());
        };
        for (const auto& [mode, name] : kEnumNames<PolicyLossMode>) {
          PolicyLossInputs in{layout,   values(), values(), values(), values(),
                              values(), values(), values(), values(), values()};
          in.log_probs = at::full({tokens}, -1.0F).requires_grad_();
          in.entropy = at::full({tokens}, 0.5F).requires_grad_();
          PolicyLossOptions options;
          options.mode = mode;
          options.aggregation = aggregation;
          options.entropy_coeff = 0.1;
          options.use_kl_loss = true;
          options.kl_times_ratio = true;
          options.off_policy_mask_threshold = 0.1;
          const PolicyLossResult result = PolicyLoss(in, options, counts);
          EXPECT_EQ(result.loss.item<float>(), 0) << name << " " << how;
          result.loss.backward();
          EXPECT_TRUE(at::equal(in.log_probs.grad(), at::zeros({tokens}))) << name << " " << how;
          EXPECT_TRUE(at::equal(in.entropy.grad(), at::zeros({tokens}))) << name << " " << how;
          EXPECT_EQ(result.sums().tokens, 0);
          EXPECT_EQ(result.sums().learnt_tokens, 0);
        }
        ValueLossInputs critic{layout, at::zeros({tokens}).requires_grad_(), values(), values()};
        const ValueLossResult result = ValueLoss(critic, {0.2, aggregation}, counts);
        EXPECT_EQ(result.loss.item<float>(), 0) << how;
        result.loss.backward();
        EXPECT_TRUE(at::equal(critic.values.grad(), at::zeros({tokens}))) << how;
      }
    }
  }
}

// Ratios far beyond what a clip allows: the modes that bound them stay finite in fp32.
TEST(PolicyLossTest, ExtremeRatiosStayFiniteWhereTheModeBoundsThem) {
  for (const auto mode : {PolicyLossMode::kVanilla, PolicyLossMode::kCispo, PolicyLossMode::kGspo,
                          PolicyLossMode::kDppoTv, PolicyLossMode::kDppoKl, PolicyLossMode::kSapo,
                          PolicyLossMode::kVespo, PolicyLossMode::kBypassMode}) {
    for (const double log_ratio : {-300.0, 300.0}) {
      for (const double advantage : {-2.0, 2.0}) {
        PolicyLossInputs in;
        in.layout = Whole(2);
        in.log_probs = Vector({-0.5 + std::min(0.0, log_ratio), -1}).requires_grad_();
        in.old_log_probs = Vector({-0.5 - std::max(0.0, log_ratio), -1});
        in.advantages = Vector({advantage, advantage});
        PolicyLossOptions options;
        options.mode = mode;
        const PolicyLossResult result = PolicyLoss(in, options, {2, 1, 1});
        result.loss.backward();
        EXPECT_TRUE(std::isfinite(result.loss.item<double>())) << NameOf(mode) << log_ratio;
        EXPECT_TRUE(in.log_probs.grad().isfinite().all().item<bool>()) << NameOf(mode) << log_ratio;
      }
    }
  }
}

TEST(PolicyLossTest, MissingInputsAreNamed) {
  PolicyLossInputs in;
  in.layout = Whole(2);
  in.log_probs = Vector({-1, -1});
  in.advantages = Vector({1, 1});
  in.old_log_probs = Vector({-1, -1});
  PolicyLossOptions options;
  options.use_kl_loss = true;
  try {
    PolicyLoss(in, options, {2, 1, 1});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.status().message().find("ref_log_probs"), std::string::npos);
  }
}

// By torch.var, as verl writes it: 1 - var(returns - values) / (var(returns) + 1e-5).
TEST(ExplainedVarianceTest, IsHowMuchOfTheReturnsTheCriticKnew) {
  const auto as_verl = [](const std::vector<double>& values, const std::vector<double>& returns) {
    const at::Tensor v = at::tensor(values), r = at::tensor(returns);
    return 1 - (at::var(r - v) / (at::var(r) + 1e-5)).item<double>();
  };
  const std::vector<double> returns = {1.5, 2.5, 3, -1};
  for (const std::vector<double>& values :
       {std::vector<double>{1, 2, 3.5, 0}, {7, 7, 7, 7}, {1.5, 2.5, 3, -1}, {-9, 4, 0.5, 3}})
    EXPECT_NEAR(*ExplainedVariance(values, returns), as_verl(values, returns), 1e-12);
  EXPECT_NEAR(*ExplainedVariance({7, 7, 7, 7}, returns), 0, 1e-5);
  EXPECT_EQ(*ExplainedVariance(returns, returns), 1);
  EXPECT_EQ(ExplainedVariance({1}, {2}), std::nullopt);
}

TEST(ValueLossTest, ByHand) {
  const auto loss = [](double value, double old_value, double ret) {
    ValueLossInputs in;
    in.layout = Whole(1);
    in.values = Vector({value});
    in.old_values = Vector({old_value});
    in.returns = Vector({ret});
    return ValueLoss(in, {0.5, LossAggregation::kTokenMean}, {1, 1, 1}).loss.item<double>();
  };
  EXPECT_NEAR(loss(1.0, 0.2, 0.5), 0.125, kTolerance);
  EXPECT_NEAR(loss(0.0, 1.0, 0.2), 0.045, kTolerance);
}

TEST(DpoLossTest, ByHand) {
  DpoInputs in;
  in.layout = {at::ones({4}, at::kBool), {0, 2, 4}};
  in.log_probs = Vector({-1, -1, -3, -1}).requires_grad_();
  in.ref_log_probs = Vector({-2, -2, -1, -2});  // margins +2 and -1
  DpoOptions options;
  const DpoResult result = DpoLoss(in, options, {1, 2});
  EXPECT_NEAR(result.loss.item<double>(), 0.554355, kTolerance);
  EXPECT_NEAR(result.sums().Metrics().at("rewards/margins"), 0.3, kTolerance);
  result.loss.backward();
  const double slope = -0.1 / (1 + std::exp(0.3));
  EXPECT_TRUE(
      at::allclose(in.log_probs.grad(), Vector({slope, slope, -slope, -slope}), 0, kTolerance));
  options.terms = {{DpoLossType::kIpo}};  // (1 + 0.5 - 5)^2
  EXPECT_NEAR(DpoLoss(in, options, {1, 2}).loss.item<double>(), 12.25, 1e-5);
  options = {};
  options.preference_loss_weight = 0;
  options.sft_loss_weight = 2;
  EXPECT_NEAR(DpoLoss(in, options, {1, 2}).loss.item<double>(), 2, kTolerance);
}

// Splitting a batch into micro-batches changes no gradient of a loss that sorts all of it.
TEST(DpoLossTest, SortedLossesOverMicroBatches) {
  at::manual_seed(5);
  const int64_t pairs = 5, tokens = 4 * pairs;
  const at::Tensor log_probs = -at::rand({tokens}) * 3, reference = -at::rand({tokens}) * 3;
  DpoOptions options;
  options.beta = 0.5;
  options.terms = {{DpoLossType::kAot, 1}, {DpoLossType::kAotUnpaired, 0.5}};
  EXPECT_TRUE(options.sorted());
  const auto layout = [](int64_t count) {
    TokenLayout of{at::ones({4 * count}, at::kBool), {}};
    for (int64_t s = 0; s <= 2 * count; ++s) of.boundaries.push_back(2 * s);
    return of;
  };
  const at::Tensor answers = AnswerLogProbs(layout(pairs), log_probs, options);
  const at::Tensor ref = AnswerLogProbs(layout(pairs), reference, options);
  // Sorted by hand: what torch.sort makes of them.
  const auto partner = [](const at::Tensor& values, const at::Tensor& others) {
    const at::Tensor order = std::get<1>(values.sort());
    return at::zeros_like(others).index_put_({order}, std::get<0>(others.sort()));
  };
  const at::Tensor chosen = (answers - ref).select(1, 0), rejected = (answers - ref).select(1, 1);
  const DpoPartners partners{
      partner(answers.select(1, 0) - answers.select(1, 1), ref.select(1, 0) - ref.select(1, 1)),
      partner(chosen, rejected), partner(rejected, chosen)};
  const auto run = [&](const std::vector<int64_t>& cuts) {
    double loss = 0;
    std::vector<at::Tensor> gradients;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      const int64_t begin = cuts[i], count = cuts[i + 1] - begin;
      DpoInputs in;
      in.layout = layout(count);
      in.log_probs = log_probs.narrow(0, 4 * begin, 4 * count).clone().requires_grad_();
      in.ref_log_probs = reference.narrow(0, 4 * begin, 4 * count);
      in.partners = {partners.of_margin.narrow(0, begin, count),
                     partners.of_chosen.narrow(0, begin, count),
                     partners.of_rejected.narrow(0, begin, count)};
      const DpoResult result = DpoLoss(in, options, {pairs, 10});
      result.loss.backward();
      loss += result.loss.item<double>();
      gradients.push_back(in.log_probs.grad());
    }
    return std::pair(loss, at::cat(gradients));
  };
  const auto [whole, gradient] = run({0, 5});
  EXPECT_GT(gradient.abs().min().item<double>(), 0);
  for (const auto& cuts : {std::vector<int64_t>{0, 1, 2, 3, 4, 5}, {0, 3, 5}}) {
    const auto [loss, parts] = run(cuts);
    EXPECT_NEAR(loss, whole, kTolerance);
    EXPECT_TRUE(at::equal(parts, gradient));
  }
  // They must be given.
  DpoInputs without;
  without.layout = layout(1);
  without.log_probs = without.ref_log_probs = at::zeros({4});
  EXPECT_THROW(DpoLoss(without, options, {1, 2}), Error);
}

TEST(DpoLossTest, PaddingPairsAndPaddingSequencesCountNothing) {
  DpoInputs in;
  in.layout = {at::tensor({1, 1, 1, 1, 0, 0, 0}, at::kInt).to(at::kBool), {0, 2, 4, 5, 6, 7}};
  in.log_probs = Vector({-1, -1, -3, -1, 5, 5, 5});
  in.ref_log_probs = Vector({-2, -2, -1, -2, 0, 0, 0});
  const DpoResult result = DpoLoss(in, {}, {1, 2});
  EXPECT_NEAR(result.loss.item<double>(), 0.554355, kTolerance);
  EXPECT_EQ(result.sums().pairs, 1);

  // A rank whose micro-batch holds padding alone takes part in the backward with nothing.
  DpoInputs empty;
  empty.layout = {at::zeros({1}, at::kBool), {0, 1}};
  empty.log_probs = at::zeros({1}).requires_grad_();
  empty.ref_log_probs = at::zeros({1});
  DpoOptions options;
  options.terms = {{DpoLossType::kSigmoid}, {DpoLossType::kAot}, {DpoLossType::kSft}};
  options.ld_alpha = 0.5;
  const DpoResult nothing = DpoLoss(empty, options, {1, 2});
  EXPECT_EQ(nothing.loss.item<double>(), 0);
  nothing.loss.backward();
  EXPECT_EQ(empty.log_probs.grad().item<double>(), 0);
}

}  // namespace
}  // namespace keel::trainer::rl
