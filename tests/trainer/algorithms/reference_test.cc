// Every estimator, loss, aggregation and correction against values made by verl's and TRL's own
// code: tests/oracles/rl_reference.json, which tests/oracles/make_rl_reference.py writes, and
// rl_random_reference.json of random cases at the edges (make_rl_cases.py); or the file that
// KEEL_RL_REFERENCE names.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <set>
#include <sstream>

#include "common/json.h"
#include "trainer/algorithms/advantages.h"
#include "trainer/algorithms/covariance_choice.h"
#include "trainer/algorithms/dpo_loss.h"
#include "trainer/algorithms/entropy_choice.h"
#include "trainer/algorithms/entropy_control.h"
#include "trainer/algorithms/kl.h"
#include "trainer/algorithms/optimal_transport.h"
#include "trainer/algorithms/policy_loss.h"
#include "trainer/algorithms/rollout_correction.h"
#include "trainer/algorithms/value_loss.h"

namespace keel::trainer::rl {
namespace {

constexpr double kReferenceTolerance = 1e-6;

// The rows of one case.
struct Rows {
  explicit Rows(const Json& inputs) : json(inputs) {
    for (const int64_t length : inputs["lengths"].get<std::vector<int64_t>>())
      boundaries.push_back(boundaries.back() + length);
    mask = inputs["mask"].get<std::vector<uint8_t>>();
  }
  PackedView view() const { return {boundaries, mask}; }
  // Of a random case with what is no number where the mask is not set: nothing may look there.
  // (Rewards it may: they are not lost there.)
  std::vector<float> floats(const char* name) const {
    return Poisoned(json[name].get<std::vector<float>>(), std::string(name) != "rewards");
  }
  std::vector<float> Poisoned(std::vector<float> values, bool poison = true) const {
    for (size_t t = 0; poison && json.contains("poisoned") && t < mask.size(); ++t)
      if (mask[t] == 0 && values.size() == mask.size()) values[t] = std::nanf("");
    return values;
  }
  at::Tensor tensor(const char* name) const { return at::tensor(floats(name)); }
  TokenLayout layout() const {
    return {at::tensor(std::vector<int>(mask.begin(), mask.end()), at::kInt).to(at::kBool),
            boundaries};
  }

  Json json;
  std::vector<int64_t> boundaries = {0};
  std::vector<uint8_t> mask;
};

Json ReadReference(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return ValueOrThrow(ParseJson(text.str(), path));
}

std::string Kept(const char* name) {
  const char* root = std::getenv("KEEL_SOURCE_DIR");
  return std::string(root == nullptr ? "." : root) + "/tests/oracles/" + name;
}

Json Reference() { return ReadReference(Kept("rl_reference.json")); }

std::vector<std::string> ReferenceFiles() {
  if (const char* named = std::getenv("KEEL_RL_REFERENCE")) return {named};
  return {Kept("rl_reference.json"), Kept("rl_random_reference.json")};
}

template <NamedEnum E>
E Choice(const Json& name) {
  return ParseName<E>(name.get<std::string>()).value();
}

template <typename Check>
void ForEachCase(const char* section, Check&& check) {
  for (const std::string& path : ReferenceFiles()) {
    size_t checked = 0;
    const Json reference = ReadReference(path);
    for (const Json& one : reference["cases"]) {
      const Rows rows(one["inputs"]);
      if (!one.contains(section)) continue;
      for (const Json& expected : one[section]) {
        Json options = expected;
        for (const char* bulky :
             {"advantages", "returns", "gradient", "values", "weights", "mask", "metrics",
              "rewards", "old", "ref", "terms", "chosen", "uncertain", "entropy_gradient", "updates"})
          options.erase(bulky);
        SCOPED_TRACE(fmt::format("seed {} {}", one.value("seed", 0), options.dump()));
        check(rows, expected);
        ++checked;
      }
    }
    // Of some there are no random cases, of the corrected KL there are only those. Of DPO none are
    // kept, as they are pairs, which other tables have no use for.
    const bool random = path != Kept("rl_reference.json");
    const std::string name = section;
    const bool kept = name != "corrected_kl", drawn = name != "dpo" && name != "entropy_control";
    if (random ? drawn : kept) {
      EXPECT_GT(checked, 0) << section << " in " << path;
    }
  }
}

// `scale`: of the terms that the value is a sum of, in fp32.
void ExpectNear(double found, double expected, const std::string& what, double scale = 1) {
  EXPECT_NEAR(found, expected,
              kReferenceTolerance * std::max({1.0, std::fabs(expected), std::fabs(scale)}))
      << what;
}

template <typename Values>
void ExpectAllNear(const Values& found, const Json& expected, const char* what, double scale = 1) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (size_t i = 0; i < found.size(); ++i) {
    ExpectNear(found[i], expected[i].get<double>(), std::string(what) + " " + std::to_string(i),
               scale);
  }
}

double Largest(const Json& values) {
  double largest = 0;
  for (const Json& value : values) largest = std::max(largest, std::fabs(value.get<double>()));
  return largest;
}

std::vector<float> Floats(const at::Tensor& tensor) {
  const at::Tensor host = tensor.contiguous();
  return {host.const_data_ptr<float>(), host.const_data_ptr<float>() + host.numel()};
}

TEST(RlReferenceTest, Advantages) {
  ForEachCase("advantages", [](const Rows& rows, const Json& expected) {
    const auto rewards = rows.floats("rewards"), values = rows.floats("values"),
               baselines = rows.json["baselines"].get<std::vector<float>>(),
               old = rows.Poisoned((expected.contains("old") ? expected : rows.json)["old"]
                                       .get<std::vector<float>>()),
               squares = rows.floats("squares"), weights = rows.floats("is_weights");
    const auto groups =
        (expected.contains("groups") ? expected : rows.json)["groups"].get<std::vector<int64_t>>();
    const auto components = rows.json["components"].get<std::vector<std::vector<double>>>();
    AdvantageInputs in{rows.view(), rewards, groups, values, baselines, old, squares};
    in.components = components;
    if (expected.value("weighted", false)) in.rollout_is_weights = weights;
    const Advantages found = ComputeAdvantages(
        in, {Choice<AdvantageEstimator>(expected["estimator"]), expected.value("gamma", 1.0),
             expected.value("lam", 1.0), expected.value("norm_adv_by_std_in_grpo", true),
             expected.value("component_weights", std::vector<double>())});
    ExpectAllNear(found.advantages, expected["advantages"], "advantage");
    ExpectAllNear(found.returns, expected["returns"], "return");
  });
}

TEST(RlReferenceTest, EveryEstimatorAndLossHasReferences) {
  std::set<std::string> estimators, modes, dpo;
  const Json reference = Reference();
  for (const Json& one : reference["cases"][0]["advantages"]) estimators.insert(one["estimator"]);
  for (const Json& one : reference["cases"][0]["policy_losses"]) modes.insert(one["mode"]);
  for (const Json& one : reference["cases"][0]["trl_policy_losses"])
    modes.insert(one["loss_type"].get<std::string>());
  for (const Json& one : reference["cases"][0]["dpo"])
    for (const Json& type : one["loss_types"]) dpo.insert(type);
  for (const std::string& name : AllNames<AdvantageEstimator>())
    EXPECT_TRUE(estimators.contains(name)) << name;
  for (const std::string& name : AllNames<PolicyLossMode>())
    EXPECT_TRUE(modes.contains(name)) << name;
  for (const std::string& name : AllNames<DpoLossType>()) EXPECT_TRUE(dpo.contains(name)) << name;
}

PolicyLossInputs LossInputs(const Rows& rows, const Json& expected) {
  PolicyLossInputs in;
  in.layout = rows.layout();
  in.log_probs = rows.tensor("log_probs").requires_grad_();
  in.old_log_probs = at::tensor(rows.Poisoned(
      (expected.contains("old") ? expected : rows.json)["old"].get<std::vector<float>>()));
  in.advantages = rows.tensor("advantages");
  return in;
}

void ExpectLoss(const Rows& rows, const PolicyLossInputs& in, const PolicyLossOptions& options,
                const Json& expected) {
  const auto result = PolicyLoss(in, options, CountDenominators(rows.view(), 16));
  // Terms of the loss that take each other away have been rounded before.
  ExpectNear(result.loss.item<double>(), expected["loss"], "loss",
             std::max(expected.value("terms", 0.0), Largest(expected["gradient"])));
  result.loss.backward();
  // A corrected KL's estimate and its ratio have gradients that take most of each other away.
  ExpectAllNear(Floats(in.log_probs.grad()), expected["gradient"], "gradient",
                options.kl_times_ratio ? 10 * Largest(expected["gradient"]) : 1);
  if (!expected.contains("metrics")) return;
  const auto metrics = result.sums().Metrics(options);
  for (const auto& [name, value] : expected["metrics"].items())
    ExpectNear(metrics.at(name), value, name);
}

// The tokens that Keel would choose itself, or, as they are drawn at random, those that verl drew.
at::Tensor Chosen(const Rows& rows, const PolicyLossInputs& in, const PolicyLossOptions& options,
                  const Json& expected) {
  const auto log_probs = rows.floats("log_probs"), old = Floats(in.old_log_probs),
             advantages = rows.floats("advantages");
  std::vector<int64_t> tokens(log_probs.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const CovarianceInputs inputs{log_probs, old, advantages, rows.mask, tokens};
  const auto choose = [&](const CovarianceOptions& covariance) {
    return ChooseByCovariance(options.mode, inputs, options.clip_ratio_low, options.clip_ratio_high,
                              covariance, {7, 1, 0});
  };
  std::vector<uint8_t> chosen = choose(options.covariance);
  if (options.mode == PolicyLossMode::kClipCov) {
    const auto drawn = expected["chosen"].get<std::vector<uint8_t>>();
    EXPECT_EQ(std::accumulate(chosen.begin(), chosen.end(), 0),
              std::accumulate(drawn.begin(), drawn.end(), 0));
    // All that may be drawn are verl's, and as many.
    CovarianceOptions all = options.covariance;
    all.clip_cov_ratio = 1;
    const std::vector<uint8_t> candidates = choose(all);
    EXPECT_EQ(std::accumulate(candidates.begin(), candidates.end(), 0),
              expected["candidates"].get<int>());
    for (size_t t = 0; t < drawn.size(); ++t) EXPECT_LE(drawn[t], candidates[t]) << t;
    for (size_t t = 0; t < drawn.size(); ++t) EXPECT_LE(chosen[t], candidates[t]) << t;
    chosen = drawn;
  }
  return at::tensor(std::vector<float>(chosen.begin(), chosen.end()));
}

TEST(RlReferenceTest, PolicyLosses) {
  ForEachCase("policy_losses", [](const Rows& rows, const Json& expected) {
    PolicyLossOptions options;
    options.mode = Choice<PolicyLossMode>(expected["mode"]);
    options.aggregation = Choice<LossAggregation>(expected["aggregation"]);
    options.clip_ratio_low = expected["clip_ratio_low"];
    options.clip_ratio_high = expected["clip_ratio_high"];
    options.clip_ratio_c = expected["clip_ratio_c"];
    options.tau_pos = expected.value("tau_pos", options.tau_pos);
    options.tau_neg = expected.value("tau_neg", options.tau_neg);
    options.dro_beta = expected.value("dro_beta", 0.0);
    options.ppo_kl_coef = expected.value("ppo_kl_coef", 0.0);
    CovarianceOptions& covariance = options.covariance;
    covariance.clip_cov_ratio = expected.value("clip_cov_ratio", 1.0);
    covariance.clip_cov_lb = expected.value("clip_cov_lb", 0.0);
    covariance.clip_cov_ub = expected.value("clip_cov_ub", 0.0);
    covariance.kl_cov_ratio = expected.value("kl_cov_ratio", 1.0);
    if (expected.contains("correction")) {
      const Json& of = expected["correction"];
      const auto parsed = ValueOrThrow(RolloutCorrectionOptions::Parse(
          ParseName<ImportanceLevel>(of.value("rollout_is", "")),
          of.value("rollout_is_threshold", "2.0"), false, of.value("rollout_rs", ""),
          of.value("rollout_rs_threshold", "")));
      options.bypass = {Choice<BypassLoss>(of["loss_type"]), parsed.level, parsed.upper,
                        parsed.lower, parsed.rules};
    }
    PolicyLossInputs in = LossInputs(rows, expected);
    if (expected["weighted"]) in.rollout_is_weights = rows.tensor("is_weights");
    if (TraitsOf(options.mode).covariance) in.chosen = Chosen(rows, in, options, expected);
    ExpectLoss(rows, in, options, expected);
  });
}

std::vector<uint8_t> ChosenByEntropy(const Rows& rows, double share) {
  const std::vector<float> entropies = rows.floats("entropy");
  std::vector<int64_t> tokens(entropies.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  return ChooseByEntropy(entropies, rows.mask, tokens, share);
}

// What the bonus weighs at the chosen tokens, so that it is a mean over them.
at::Tensor Uncertain(const Rows& rows, const std::vector<uint8_t>& chosen) {
  const auto weight = static_cast<float>(PolicyTokens(rows.view())) /
                      static_cast<float>(std::accumulate(chosen.begin(), chosen.end(), 0));
  return at::tensor(std::vector<float>(chosen.begin(), chosen.end())) * weight;
}

// One advantage a response.
PolicyLossInputs TrlInputs(const Rows& rows, const Json& expected) {
  PolicyLossInputs in = LossInputs(rows, expected);
  in.advantages = in.advantages.clone();
  for (size_t s = 0; s + 1 < rows.boundaries.size(); ++s) {
    const int64_t first = rows.boundaries[s], end = rows.boundaries[s + 1];
    if (first == end) continue;
    in.advantages.narrow(0, first, end - first)
        .fill_(rows.json["advantages"][static_cast<size_t>(first)].get<float>());
  }
  return in;
}

// What docs/algorithms.md says that TRL's names are here.
TEST(RlReferenceTest, TrlPolicyLosses) {
  ForEachCase("trl_policy_losses", [](const Rows& rows, const Json& expected) {
    const std::string type = expected["loss_type"];
    PolicyLossOptions options;
    options.clip_ratio_low = expected["epsilon"];
    options.clip_ratio_high = expected["epsilon_high"];
    options.clip_ratio_c = expected["delta"].is_null() ? 1e9 : expected["delta"].get<double>();
    options.tau_pos = expected["sapo_temperature_pos"];
    options.tau_neg = expected["sapo_temperature_neg"];
    options.vespo = {expected["vespo_k_pos"], expected["vespo_lambda_pos"], expected["vespo_k_neg"],
                     expected["vespo_lambda_neg"]};
    if (expected["importance_sampling_level"] == "sequence") options.mode = PolicyLossMode::kGspo;
    using enum LossAggregation;
    if (type == "grpo") options.aggregation = kSeqMeanTokenMean;
    if (type == "dr_grpo") options.aggregation = kSeqMeanTokenSumNorm;
    if (type == "luspo") options.aggregation = kSeqMeanTokenSum;
    if (type == "sapo") options.mode = PolicyLossMode::kSapo;
    if (type == "vespo") options.mode = PolicyLossMode::kVespo;
    if (type == "cispo") {
      options.mode = PolicyLossMode::kCispo;
      options.clip_ratio_low = 1;
      options.clip_ratio_high = expected["epsilon_high"].get<double>() - 1;
    }
    PolicyLossInputs in = TrlInputs(rows, expected);
    if (expected["weighted"]) in.rollout_is_weights = rows.tensor("is_weights") + 0.125;
    if (expected.contains("off_policy_mask_threshold")) {
      options.off_policy_mask_threshold = expected["off_policy_mask_threshold"].get<double>();
      if (expected["weighted"]) in.sampling_log_probs = rows.tensor("rollout");
    }
    if (expected.contains("beta")) {
      options.use_kl_loss = true;
      options.kl_loss_coef = expected["beta"];
      options.kl_times_ratio = expected["use_bias_correction_kl"];
      in.ref_log_probs = rows.tensor("ref");
      // TRL's one mean is of both; here the KL term's is what loss_agg_mode says.
      if (type == "sapo") options.aggregation = kSeqMeanTokenMean;
    }
    if (expected.contains("top_entropy_quantile")) {
      options.top_entropy_quantile = expected["top_entropy_quantile"];
      const auto chosen = ChosenByEntropy(rows, options.top_entropy_quantile);
      EXPECT_EQ(chosen, expected["uncertain"].get<std::vector<uint8_t>>());
      in.uncertain = Uncertain(rows, chosen);
    }
    options.entropy_coeff = expected.value("entropy_coef", 0.0);
    in.entropy = rows.tensor("entropy").requires_grad_();
    ExpectLoss(rows, in, options, expected);
    if (options.entropy_coeff != 0)
      ExpectAllNear(Floats(in.entropy.grad()), expected["entropy_gradient"], "entropy gradient");
  });
}

// use_adaptive_entropy: its weight from update to update, and what the loss makes of it.
TEST(RlReferenceTest, EntropyControl) {
  ForEachCase("entropy_control", [](const Rows& rows, const Json& expected) {
    EntropyController controller({expected["entropy_coef"], expected["entropy_coef_min"],
                                  expected["entropy_coef_max"], expected["entropy_coef_delta"],
                                  expected["entropy_target"]});
    PolicyLossOptions options;
    options.clip_ratio_low = 0.15;
    options.clip_ratio_high = 0.28;
    options.clip_ratio_c = 1e9;
    options.top_entropy_quantile = expected["top_entropy_quantile"];
    for (const Json& update : expected["updates"]) {
      PolicyLossInputs in = TrlInputs(rows, expected);
      in.entropy = rows.tensor("entropy") * update["scale"].get<double>();
      if (options.top_entropy_quantile < 1)
        in.uncertain = Uncertain(rows, update["uncertain"].get<std::vector<uint8_t>>());
      options.entropy_coeff = controller.Applied();
      const auto result = PolicyLoss(in, options, CountDenominators(rows.view(), 1));
      ExpectNear(result.loss.item<double>(), update["loss"], "loss");
      controller.Update(result.sums().learnt_entropy / result.sums().learnt_tokens);
      ExpectNear(controller.coefficient(), update["coefficient"], "coefficient");
      // A run that was stopped here goes on alike.
      EntropyController resumed({});
      ASSERT_TRUE(resumed.Restore(ValueOrThrow(ParseJson(controller.State().dump(), ""))).ok());
      EXPECT_EQ(resumed.State(), controller.State());
    }
  });
}

TEST(RlReferenceTest, KlLosses) {
  ForEachCase("kl_losses", [](const Rows& rows, const Json& expected) {
    const KlKind kind = KindOf(Choice<KlName>(expected["kind"]));
    const auto old = rows.json["log_probs"].get<std::vector<float>>(),
               ref = rows.json["ref"].get<std::vector<float>>();
    at::Tensor log_probs = at::tensor(old).requires_grad_();
    const at::Tensor kl = KlPenalty(log_probs, at::tensor(ref), kind);
    ExpectAllNear(Floats(kl.detach()), expected["values"], "divergence");
    std::vector<float> plain;
    for (size_t i = 0; i < old.size(); ++i)
      plain.push_back(EstimateKl(kind.estimator, old[i], ref[i]));
    ExpectAllNear(plain, expected["values"], "divergence on the host");
    const at::Tensor loss = WeightedSum(kl, LossWeights(rows.layout(), LossAggregation::kTokenMean,
                                                        CountDenominators(rows.view(), 1)));
    ExpectNear(loss.item<double>(), expected["loss"], "loss");
    loss.backward();
    ExpectAllNear(Floats(log_probs.grad()), expected["gradient"], "gradient");
  });
}

// use_bias_correction_kl, where the ratio is far from 1.
TEST(RlReferenceTest, CorrectedKl) {
  ForEachCase("corrected_kl", [](const Rows& rows, const Json& expected) {
    PolicyLossOptions options;
    if (expected["by_sequence"]) options.mode = PolicyLossMode::kGspo;
    options.use_kl_loss = true;
    options.kl_loss_coef = 1;
    options.kl_times_ratio = true;
    PolicyLossInputs in = LossInputs(rows, expected);
    in.advantages = at::zeros_like(in.advantages);
    in.ref_log_probs = rows.tensor("ref");
    const auto result = PolicyLoss(in, options, CountDenominators(rows.view(), 1));
    // exp(x) - x - 1 is rounded in fp32, and then weighed by the ratio.
    ExpectNear(result.loss.item<double>(), expected["loss"], "loss",
               10 * Largest(expected["gradient"]));
    result.loss.backward();
    ExpectAllNear(Floats(in.log_probs.grad()), expected["gradient"], "gradient",
                  10 * Largest(expected["gradient"]));
  });
}

TEST(RlReferenceTest, ValueLosses) {
  ForEachCase("value_losses", [](const Rows& rows, const Json& expected) {
    ValueLossInputs in{rows.layout(), rows.tensor("values").requires_grad_(),
                       rows.tensor("old_values"), rows.tensor("returns")};
    const auto result = ValueLoss(
        in, {expected["cliprange_value"], Choice<LossAggregation>(expected["aggregation"])},
        CountDenominators(rows.view(), expected.value("scale_factor", 1.0)));
    ExpectNear(result.loss.item<double>(), expected["loss"], "loss");
    ExpectNear(result.sums().Metrics().at("critic/vf_clipfrac"), expected["clipfrac"], "clipfrac");
    result.loss.backward();
    ExpectAllNear(Floats(in.values.grad()), expected["gradient"], "gradient");
  });
}

TEST(RlReferenceTest, RolloutCorrections) {
  ForEachCase("corrections", [](const Rows& rows, const Json& expected) {
    const Json& o = expected["options"];
    const auto options = ValueOrThrow(RolloutCorrectionOptions::Parse(
        ParseName<ImportanceLevel>(o.value("rollout_is", "")),
        o.value("rollout_is_threshold", "2.0"), o.value("rollout_is_batch_normalize", false),
        o.value("rollout_rs", ""), o.value("rollout_rs_threshold", "")));
    const auto trainer = rows.floats("old"), rollout = rows.floats("rollout");
    const RolloutCorrection found = CorrectRollout(rows.view(), trainer, rollout, options);
    ExpectAllNear(found.weights, expected["weights"], "weight");
    EXPECT_EQ(found.mask, expected["mask"].get<std::vector<uint8_t>>());
    EXPECT_EQ(found.metrics.size(), expected["metrics"].size());
    for (const auto& [name, value] : expected["metrics"].items()) {
      ASSERT_TRUE(found.metrics.count(name)) << name;
      // verl's means are each divided by 1e-8 more than what they count: of a perplexity that is in
      // the exponent, a variance is a difference of two, and weights whose mean is 0.01 are put
      // right twice.
      const double largest = expected["metrics"].value(
          name.substr(0, std::max<size_t>(4, name.size()) - 4) + "_max", 0.0);
      const double of = value.get<double>();
      const double scale = name.ends_with("_std")               ? 200 * largest
                           : name.ends_with("_ppl")             ? of * std::log(std::max(1.0, of))
                           : name.ends_with("_eff_sample_size") ? 3 * of
                                                                : 1;
      ExpectNear(found.metrics.at(name), value, name, scale);
    }
  });
}

TEST(RlReferenceTest, KlInTheReward) {
  ForEachCase("kl_control", [](const Rows& rows, const Json& expected) {
    auto rewards = rows.floats("rewards");
    const auto old = rows.floats("old"), ref = rows.floats("ref");
    KlController controller({KlControl::kAdaptive, 0.2, 100, 0.1});
    const double kl =
        ApplyKlPenalty(rows.view(), KindOf(Choice<KlName>(expected["kind"])).estimator, old, ref,
                       controller.coefficient(), rewards);
    ExpectNear(kl, expected["kl"], "divergence");
    ExpectAllNear(rewards, expected["rewards"], "reward");
    std::vector<double> coefficients;
    for (const double scale : {1.0, 0.1, -1.0, 30.0}) {
      controller.Update(kl * scale, static_cast<int64_t>(rows.boundaries.size()) - 1);
      coefficients.push_back(controller.coefficient());
    }
    ExpectAllNear(coefficients, expected["coefficients"], "coefficient");
  });
}

// As the task makes them, of the first `pairs` pairs; others are padding, whose partners are not
// looked at.
DpoPartners PartnersOfAll(const DpoInputs& in, size_t pairs, const DpoOptions& options) {
  const at::NoGradGuard no_grad;
  const at::Tensor policy = AnswerLogProbs(in.layout, in.log_probs, options);
  const at::Tensor reference = AnswerLogProbs(in.layout, in.ref_log_probs, options);
  const auto by_rank = [&](const at::Tensor& values, const at::Tensor& others) {
    const at::Tensor a = values.contiguous(), b = others.contiguous();
    std::vector<double> partners =
        PartnersByRank({a.const_data_ptr<double>(), pairs}, {b.const_data_ptr<double>(), pairs});
    partners.resize(static_cast<size_t>(a.numel()));
    return at::tensor(partners, at::kDouble);
  };
  const auto margin = [](const at::Tensor& of) { return of.select(1, 0) - of.select(1, 1); };
  const at::Tensor ratios = policy - reference;
  return {by_rank(margin(policy), margin(reference)),
          by_rank(ratios.select(1, 0), ratios.select(1, 1)),
          by_rank(ratios.select(1, 1), ratios.select(1, 0))};
}

TEST(RlReferenceTest, Dpo) {
  ForEachCase("dpo", [](const Rows& rows, const Json& expected) {
    const auto types = expected["loss_types"].get<std::vector<std::string>>();
    DpoOptions options;
    options.beta = expected["beta"];
    options.label_smoothing = expected["label_smoothing"];
    options.terms.clear();
    for (size_t i = 0; i < types.size(); ++i)
      options.terms.push_back({Choice<DpoLossType>(types[i]), expected["loss_weights"][i]});
    options.f_divergence = Choice<FDivergence>(expected["f_divergence_type"]);
    options.f_alpha_divergence_coef = expected["f_alpha_divergence_coef"];
    options.discopop_tau = expected["discopop_tau"];
    if (!expected["ld_alpha"].is_null()) options.ld_alpha = expected["ld_alpha"].get<double>();
    // Pairs that the reference leaves out take no part here either: their tokens are masked.
    const size_t pairs = expected["pairs"];
    DpoInputs in;
    in.layout = rows.layout();
    const int64_t end = rows.boundaries[2 * pairs];
    in.layout.mask.narrow(0, end, in.layout.mask.size(0) - end).fill_(false);
    in.log_probs = rows.tensor("log_probs").requires_grad_();
    in.ref_log_probs = at::tensor(
        (expected.contains("ref") ? expected : rows.json)["ref"].get<std::vector<float>>());
    if (options.sorted()) in.partners = PartnersOfAll(in, pairs, options);
    options.use_weighting = expected.value("use_weighting", false);
    if (options.use_weighting) in.log_sum_squares = (rows.tensor("squares") + 1.0 / 1024).log();
    DpoDenominators counts;
    counts.pairs = static_cast<int64_t>(pairs);
    for (size_t p = 0; p < pairs; ++p) counts.chosen_tokens += PolicyTokens(rows.view(), 2 * p);
    const DpoResult result = DpoLoss(in, options, counts);
    ExpectNear(result.loss.item<double>(), expected["loss"], "loss");
    result.loss.backward();
    ExpectAllNear(Floats(in.log_probs.grad()), expected["gradient"], "gradient");
    const auto metrics = result.sums().Metrics();
    for (const auto& [name, value] : expected["metrics"].items())
      ExpectNear(metrics.at("rewards/" + name), value, name);
  });
}

}  // namespace
}  // namespace keel::trainer::rl
