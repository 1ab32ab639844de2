// Every estimator, loss, aggregation and correction against values made by verl's and TRL's own
// code: tests/oracles/rl_reference.json, which tests/oracles/make_rl_reference.py writes.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "common/json.h"
#include "trainer/algorithms/advantages.h"
#include "trainer/algorithms/dpo_loss.h"
#include "trainer/algorithms/kl.h"
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
  std::vector<float> floats(const char* name) const { return json[name].get<std::vector<float>>(); }
  at::Tensor tensor(const char* name) const { return at::tensor(floats(name)); }
  TokenLayout layout() const {
    return {at::tensor(std::vector<int>(mask.begin(), mask.end()), at::kInt).to(at::kBool),
            boundaries};
  }

  Json json;
  std::vector<int64_t> boundaries = {0};
  std::vector<uint8_t> mask;
};

Json Reference() {
  const char* root = std::getenv("KEEL_SOURCE_DIR");
  std::ifstream file(std::string(root == nullptr ? "." : root) +
                     "/tests/oracles/rl_reference.json");
  std::stringstream text;
  text << file.rdbuf();
  return ValueOrThrow(ParseJson(text.str(), "rl_reference.json"));
}

template <NamedEnum E>
E Choice(const Json& name) {
  return ParseName<E>(name.get<std::string>()).value();
}

template <typename Check>
void ForEachCase(const char* section, Check&& check) {
  const Json reference = Reference();
  ASSERT_FALSE(reference["cases"].empty());
  for (const Json& one : reference["cases"]) {
    const Rows rows(one["inputs"]);
    ASSERT_FALSE(one[section].empty()) << section;
    for (const Json& expected : one[section]) {
      Json options = expected;
      for (const char* bulky :
           {"advantages", "returns", "gradient", "values", "weights", "mask", "metrics", "rewards"})
        options.erase(bulky);
      SCOPED_TRACE(options.dump());
      check(rows, expected);
    }
  }
}

void ExpectNear(double found, double expected, const std::string& what) {
  EXPECT_NEAR(found, expected, kReferenceTolerance * std::max(1.0, std::fabs(expected))) << what;
}

template <typename Values>
void ExpectAllNear(const Values& found, const Json& expected, const char* what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (size_t i = 0; i < found.size(); ++i)
    ExpectNear(found[i], expected[i].get<double>(), std::string(what) + " " + std::to_string(i));
}

std::vector<float> Floats(const at::Tensor& tensor) {
  const at::Tensor host = tensor.contiguous();
  return {host.const_data_ptr<float>(), host.const_data_ptr<float>() + host.numel()};
}

TEST(RlReferenceTest, Advantages) {
  ForEachCase("advantages", [](const Rows& rows, const Json& expected) {
    const auto rewards = rows.floats("rewards");
    const auto values = rows.floats("values");
    const auto baselines = rows.floats("baselines");
    const auto groups = rows.json["groups"].get<std::vector<int64_t>>();
    const Advantages found = ComputeAdvantages(
        {rows.view(), rewards, groups, values, baselines},
        {Choice<AdvantageEstimator>(expected["estimator"]), expected.value("gamma", 1.0),
         expected.value("lam", 1.0), expected.value("norm_adv_by_std_in_grpo", true)});
    ExpectAllNear(found.advantages, expected["advantages"], "advantage");
    ExpectAllNear(found.returns, expected["returns"], "return");
  });
}

TEST(RlReferenceTest, PolicyLosses) {
  ForEachCase("policy_losses", [](const Rows& rows, const Json& expected) {
    PolicyLossOptions options;
    options.mode = Choice<PolicyLossMode>(expected["mode"]);
    options.aggregation = Choice<LossAggregation>(expected["aggregation"]);
    options.clip_ratio_low = expected["clip_ratio_low"];
    options.clip_ratio_high = expected["clip_ratio_high"];
    options.clip_ratio_c = expected["clip_ratio_c"];
    PolicyLossInputs in;
    in.layout = rows.layout();
    in.log_probs = rows.tensor("log_probs").requires_grad_();
    in.old_log_probs = rows.tensor("old");
    in.advantages = rows.tensor("advantages");
    if (expected["weighted"]) in.rollout_is_weights = rows.tensor("is_weights");
    const auto result = PolicyLoss(in, options, CountDenominators(rows.view(), 16));
    ExpectNear(result.loss.item<double>(), expected["loss"], "loss");
    result.loss.backward();
    ExpectAllNear(Floats(in.log_probs.grad()), expected["gradient"], "gradient");
    const auto metrics = result.sums.Metrics(options);
    for (const auto& [name, value] : expected["metrics"].items())
      ExpectNear(metrics.at(name), value, name);
  });
}

TEST(RlReferenceTest, KlLosses) {
  ForEachCase("kl_losses", [](const Rows& rows, const Json& expected) {
    const KlKind kind = KindOf(Choice<KlName>(expected["kind"]));
    at::Tensor log_probs = rows.tensor("log_probs").requires_grad_();
    const at::Tensor kl = KlPenalty(log_probs, rows.tensor("ref"), kind);
    ExpectAllNear(Floats(kl.detach()), expected["values"], "divergence");
    const auto old = rows.floats("log_probs"), ref = rows.floats("ref");
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

TEST(RlReferenceTest, ValueLosses) {
  ForEachCase("value_losses", [](const Rows& rows, const Json& expected) {
    ValueLossInputs in{rows.layout(), rows.tensor("values").requires_grad_(),
                       rows.tensor("old_values"), rows.tensor("returns")};
    const auto result = ValueLoss(
        in, {expected["cliprange_value"], Choice<LossAggregation>(expected["aggregation"])},
        CountDenominators(rows.view(), 1));
    ExpectNear(result.loss.item<double>(), expected["loss"], "loss");
    ExpectNear(result.sums.Metrics().at("critic/vf_clipfrac"), expected["clipfrac"], "clipfrac");
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
      ExpectNear(found.metrics.at(name), value, name);
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

TEST(RlReferenceTest, Dpo) {
  ForEachCase("dpo", [](const Rows& rows, const Json& expected) {
    const auto types = expected["loss_types"].get<std::vector<std::string>>();
    DpoOptions options;
    options.beta = expected["beta"];
    options.type = types[0] == "ipo" ? DpoLossType::kIpo : DpoLossType::kSigmoid;
    options.label_smoothing = expected["label_smoothing"];
    options.preference_loss_weight = expected["loss_weights"][0];
    options.sft_loss_weight = types.size() > 1 ? expected["loss_weights"][1].get<double>() : 0;
    // Pairs that the reference leaves out take no part here either: their tokens are masked.
    const size_t pairs = expected["pairs"];
    DpoInputs in;
    in.layout = rows.layout();
    const int64_t end = rows.boundaries[2 * pairs];
    in.layout.mask.narrow(0, end, in.layout.mask.size(0) - end).fill_(false);
    in.log_probs = rows.tensor("log_probs").requires_grad_();
    in.ref_log_probs = rows.tensor("ref");
    DpoDenominators counts;
    counts.pairs = static_cast<int64_t>(pairs);
    for (size_t p = 0; p < pairs; ++p) counts.chosen_tokens += PolicyTokens(rows.view(), 2 * p);
    const DpoResult result = DpoLoss(in, options, counts);
    ExpectNear(result.loss.item<double>(), expected["loss"], "loss");
    result.loss.backward();
    ExpectAllNear(Floats(in.log_probs.grad()), expected["gradient"], "gradient");
    const auto metrics = result.sums.Metrics();
    for (const auto& [name, value] : expected["metrics"].items())
      ExpectNear(metrics.at("rewards/" + name), value, name);
  });
}

}  // namespace
}  // namespace keel::trainer::rl
