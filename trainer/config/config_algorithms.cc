// What of the choices among RL's and DPO's algorithms does not fit together; see config_rl.h.

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <set>
#include <string_view>

#include "trainer/algorithms/kl.h"
#include "trainer/algorithms/rollout_correction_options.h"
#include "trainer/config/config.h"

namespace keel::trainer {

namespace {

// "gae, reinforce_plus_plus": the estimators with that trait, or those without it.
std::string EstimatorsThat(bool rl::AdvantageTraits::*trait, bool have = true) {
  std::vector<std::string_view> names;
  for (const auto& [estimator, name] : kEnumNames<rl::AdvantageEstimator>) {
    if (rl::TraitsOf(estimator).*trait == have) names.push_back(name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

template <NamedEnum E>
std::string Names(const std::vector<E>& values) {
  std::vector<std::string_view> names;
  for (const E value : values) names.push_back(NameOf(value));
  return fmt::format("{}", fmt::join(names, ", "));
}

using Problems = std::vector<std::string>;

void CheckEstimator(const Config& c, Problems& problems) {
  const AlgorithmSection& a = c.algorithm;
  const rl::AdvantageTraits traits = rl::TraitsOf(a.adv_estimator);
  const std::string_view estimator = NameOf(a.adv_estimator);
  if (traits.values && !HasCritic(c)) {
    problems.push_back(
        fmt::format("algorithm.adv_estimator {} needs values: set critic.enable to true or null, "
                    "or choose one of {}",
                    estimator, EstimatorsThat(&rl::AdvantageTraits::values, false)));
  }
  if (a.lam != 1.0 && !traits.lam) {
    problems.push_back(
        fmt::format("algorithm.lam is of {} alone; algorithm.adv_estimator is {}: leave it at 1",
                    EstimatorsThat(&rl::AdvantageTraits::lam), estimator));
  }
  if (a.gamma != 1.0 && !traits.gamma) {
    problems.push_back(fmt::format(
        "algorithm.gamma has no effect with algorithm.adv_estimator {}: leave it at 1", estimator));
  }
  if (traits.pairs && c.actor_rollout_ref.rollout.n < 2) {
    problems.push_back(
        fmt::format("algorithm.adv_estimator {} compares the best response to a prompt with the "
                    "second best: set actor_rollout_ref.rollout.n to 2 or more",
                    estimator));
  }
  if (traits.sum_pi_squared && a.rollout_correction.bypass_mode) {
    problems.push_back(
        fmt::format("algorithm.adv_estimator {} needs the trainer's own probabilities, which "
                    "algorithm.rollout_correction.bypass_mode does without: set one of them only",
                    estimator));
  }
  if (!traits.components) {
    if (!a.gdpo_reward_keys.empty() || !a.gdpo_reward_weights.empty()) {
      problems.push_back(
          fmt::format("algorithm.gdpo_reward_keys and gdpo_reward_weights are of {} alone; "
                      "algorithm.adv_estimator is {}: leave them out",
                      EstimatorsThat(&rl::AdvantageTraits::components), estimator));
    }
    return;
  }
  if (a.gdpo_reward_keys.empty()) {
    problems.push_back(
        fmt::format("algorithm.adv_estimator {} needs algorithm.gdpo_reward_keys: the names of the "
                    "verifier's values that are its rewards, as [format, accuracy]",
                    estimator));
  } else if (!a.gdpo_reward_weights.empty() &&
             a.gdpo_reward_weights.size() != a.gdpo_reward_keys.size()) {
    problems.push_back(
        fmt::format("algorithm.gdpo_reward_weights has {} numbers for the {} of "
                    "algorithm.gdpo_reward_keys: give one for each, or none",
                    a.gdpo_reward_weights.size(), a.gdpo_reward_keys.size()));
  }
  // Its rewards are the verifier's values, to which neither is added.
  for (const auto& [set, key] :
       {std::pair(a.use_kl_in_reward, "algorithm.use_kl_in_reward"),
        std::pair(c.reward.overlong_buffer.enable, "reward.overlong_buffer.enable")}) {
    if (!set) continue;
    problems.push_back(
        fmt::format("{} changes the score, but algorithm.adv_estimator {} learns from "
                    "algorithm.gdpo_reward_keys: set it to false",
                    key, estimator));
  }
}

// A key of the actor's that one loss or switch reads alone.
struct ReadByOne {
  const char* name;
  double value, initial;
  rl::PolicyLossMode of = rl::PolicyLossMode::kVanilla;
};

// Keys that a single loss takes, where they are off their defaults and the loss is another.
void CheckKeysOfOneLoss(const ActorLossSection& loss, Problems& problems) {
  using enum rl::PolicyLossMode;
  const rl::PolicyLossMode mode = loss.policy_loss.loss_mode;
  const PolicyLossSection& p = loss.policy_loss;
  const PolicyLossSection initial;
  const ActorLossSection first;
  for (const ReadByOne& key : std::initializer_list<ReadByOne>{
           {"tau_pos", loss.tau_pos, first.tau_pos, kSapo},
           {"tau_neg", loss.tau_neg, first.tau_neg, kSapo},
           {"policy_loss.clip_cov_ratio", p.clip_cov_ratio, initial.clip_cov_ratio, kClipCov},
           {"policy_loss.clip_cov_lb", p.clip_cov_lb, initial.clip_cov_lb, kClipCov},
           {"policy_loss.clip_cov_ub", p.clip_cov_ub, initial.clip_cov_ub, kClipCov},
           {"policy_loss.kl_cov_ratio", p.kl_cov_ratio, initial.kl_cov_ratio, kKlCov},
           {"policy_loss.ppo_kl_coef", p.ppo_kl_coef, initial.ppo_kl_coef, kKlCov},
           {"policy_loss.vespo_k_pos", p.vespo_k_pos, initial.vespo_k_pos, kVespo},
           {"policy_loss.vespo_lambda_pos", p.vespo_lambda_pos, initial.vespo_lambda_pos, kVespo},
           {"policy_loss.vespo_k_neg", p.vespo_k_neg, initial.vespo_k_neg, kVespo},
           {"policy_loss.vespo_lambda_neg", p.vespo_lambda_neg, initial.vespo_lambda_neg,
            kVespo}}) {
    if (key.of == mode || key.value == key.initial) continue;
    problems.push_back(
        fmt::format("actor_rollout_ref.actor.{} is of policy_loss.loss_mode {} alone, which is {}: "
                    "leave it at {}",
                    key.name, NameOf(key.of), NameOf(mode), key.initial));
  }
  if (mode == kDro && !p.dro_beta) {
    problems.push_back(
        "actor_rollout_ref.actor.policy_loss.dro_beta is not given: loss_mode dro needs its "
        "penalty, a number above 0");
  }
  if (mode != kDro && p.dro_beta) {
    problems.push_back(
        fmt::format("actor_rollout_ref.actor.policy_loss.dro_beta is of policy_loss.loss_mode dro "
                    "alone, which is {}: leave it at null",
                    NameOf(mode)));
  }
  if (mode == kClipCov && p.clip_cov_lb >= p.clip_cov_ub) {
    problems.push_back(fmt::format(
        "actor_rollout_ref.actor.policy_loss.clip_cov_lb {} is not below clip_cov_ub {}: no token "
        "would be between them",
        p.clip_cov_lb, p.clip_cov_ub));
  }
}

void CheckEntropyKeys(const ActorLossSection& loss, Problems& problems) {
  const ActorLossSection first;
  for (const ReadByOne& key : std::initializer_list<ReadByOne>{
           {"entropy_coeff_min", loss.entropy_coeff_min, first.entropy_coeff_min},
           {"entropy_coeff_max", loss.entropy_coeff_max, first.entropy_coeff_max},
           {"entropy_coeff_delta", loss.entropy_coeff_delta, first.entropy_coeff_delta},
           {"entropy_target", loss.entropy_target, first.entropy_target}}) {
    if (loss.use_adaptive_entropy || key.value == key.initial) continue;
    problems.push_back(
        fmt::format("actor_rollout_ref.actor.{} is of use_adaptive_entropy: set that to true, or "
                    "leave it at {}",
                    key.name, key.initial));
  }
  if (loss.use_adaptive_entropy && (loss.entropy_coeff_min > loss.entropy_coeff ||
                                    loss.entropy_coeff > loss.entropy_coeff_max)) {
    problems.push_back(fmt::format(
        "actor_rollout_ref.actor.entropy_coeff {} is not between entropy_coeff_min {} and "
        "entropy_coeff_max {}, where use_adaptive_entropy keeps it",
        loss.entropy_coeff, loss.entropy_coeff_min, loss.entropy_coeff_max));
  }
}

// `critic`: the aggregation of its loss.
void CheckLossKeys(const ActorLossSection& loss, rl::LossAggregation critic, Problems& problems) {
  const rl::PolicyLossMode mode = loss.policy_loss.loss_mode;
  const PolicyLossSection& p = loss.policy_loss;
  const ActorLossSection first;
  CheckKeysOfOneLoss(loss, problems);
  // The key's default goes with every loss.
  if (rl::TraitsOf(mode).within_sequence && loss.loss_agg_mode != first.loss_agg_mode &&
      loss.loss_agg_mode != rl::LossAggregation::kSeqMeanTokenMean) {
    problems.push_back(
        fmt::format("actor_rollout_ref.actor.loss_agg_mode {} is not what policy_loss.loss_mode {} "
                    "does: it is a mean over sequences of their means; set it to "
                    "seq-mean-token-mean",
                    NameOf(loss.loss_agg_mode), NameOf(mode)));
  }
  if (p.top_entropy_quantile < 1 && !rl::TraitsOf(mode).by_token) {
    problems.push_back(fmt::format(
        "actor_rollout_ref.actor.policy_loss.top_entropy_quantile leaves single tokens out, but "
        "policy_loss.loss_mode {} is of whole sequences, or chooses tokens itself: leave it at 1",
        NameOf(mode)));
  }
  if (loss.use_bias_correction_kl && !loss.use_kl_loss) {
    problems.push_back(
        "actor_rollout_ref.actor.use_bias_correction_kl is of the KL divergence in the loss: set "
        "use_kl_loss to true, or it to false");
  }
  CheckEntropyKeys(loss, problems);
  if (loss.loss_scale_factor && !rl::TakesScaleFactor(loss.loss_agg_mode) &&
      !rl::TakesScaleFactor(critic)) {
    problems.push_back(
        fmt::format("actor_rollout_ref.actor.loss_scale_factor is of loss_agg_mode "
                    "seq-mean-token-sum-norm alone, which is {}",
                    NameOf(loss.loss_agg_mode)));
  }
}

void CheckCorrection(const RolloutCorrectionSection& r, const PolicyLossSection& loss,
                     Problems& problems) {
  const rl::PolicyLossMode mode = loss.loss_mode;
  const Status correction = rl::RolloutCorrectionOptions::Parse(
                                r.rollout_is, r.rollout_is_threshold, r.rollout_is_batch_normalize,
                                r.rollout_rs.value_or(""), r.rollout_rs_threshold.value_or(""))
                                .status();
  if (!correction.ok()) problems.push_back(correction.message());
  const bool reinforce = r.loss_type == rl::BypassLoss::kReinforce;
  if (r.bypass_mode && r.rollout_is && !reinforce) {
    problems.push_back(
        "algorithm.rollout_correction.bypass_mode already puts the rollout's probabilities into "
        "the ratio; rollout_is would count them twice: set one of them only");
  }
  if (r.bypass_mode && r.m2po_threshold) {
    problems.push_back(
        "algorithm.rollout_correction.m2po_threshold compares the log-probabilities before a step "
        "with the rollout's, which bypass_mode takes for them: it would reject nothing; set one of "
        "them only");
  }
  if (r.bypass_mode && r.rollout_rs &&
      (rl::TraitsOf(mode).covariance || loss.top_entropy_quantile < 1)) {
    problems.push_back(fmt::format(
        "algorithm.rollout_correction.rollout_rs rejects within the update with bypass_mode, and "
        "actor_rollout_ref.actor.policy_loss.{} chooses among all tokens before it: set one of "
        "them only",
        rl::TraitsOf(mode).covariance ? fmt::format("loss_mode {}", NameOf(mode))
                                      : "top_entropy_quantile"));
  }
  if (reinforce && r.rollout_is_batch_normalize) {
    problems.push_back(
        "algorithm.rollout_correction.rollout_is_batch_normalize is not supported with loss_type "
        "reinforce, whose weights change within the update: set it to false");
  }
  if (reinforce && !r.bypass_mode) {
    problems.push_back(
        "algorithm.rollout_correction.loss_type reinforce is of bypass_mode alone: set bypass_mode "
        "to true, or loss_type to ppo_clip");
  }
  if (reinforce && mode != rl::PolicyLossMode::kVanilla &&
      mode != rl::PolicyLossMode::kBypassMode) {
    problems.push_back(
        fmt::format("algorithm.rollout_correction.loss_type reinforce and "
                    "actor_rollout_ref.actor.policy_loss.loss_mode {} are two losses: leave one of "
                    "them at its default",
                    NameOf(mode)));
  }
  if (mode == rl::PolicyLossMode::kBypassMode && !r.bypass_mode) {
    problems.push_back(
        "actor_rollout_ref.actor.policy_loss.loss_mode bypass_mode needs "
        "algorithm.rollout_correction.bypass_mode: true");
  }
  if (mode == rl::PolicyLossMode::kVespo && r.rollout_is == rl::ImportanceLevel::kSequence) {
    problems.push_back(
        "algorithm.rollout_correction.rollout_is sequence would count a sequence's ratio once for "
        "each token with policy_loss.loss_mode vespo, which adds up logarithms over tokens: set it "
        "to token");
  }
}

// A step multiplies the coefficient by 1 + error x samples / horizon (rl::KlController). At 0 or
// below, the penalty would be none, or a reward for leaving the reference.
void CheckKlControl(const Config& c, Problems& problems) {
  const AlgorithmSection& a = c.algorithm;
  if (!a.use_kl_in_reward || a.kl_ctrl.type != rl::KlControl::kAdaptive) return;
  const double samples = static_cast<double>(c.data.train_batch_size) *
                         static_cast<double>(c.actor_rollout_ref.rollout.n);
  const double least = rl::kMostKlError * samples;
  if (static_cast<double>(a.kl_ctrl.horizon) > least) return;
  problems.push_back(
      fmt::format("algorithm.kl_ctrl.horizon {} is too short for steps of {} responses "
                  "(data.train_batch_size x actor_rollout_ref.rollout.n): one step could take the "
                  "coefficient to 0 or below; raise it above {}",
                  a.kl_ctrl.horizon, samples, least));
}

}  // namespace

std::vector<std::string> AlgorithmProblems(const Config& c) {
  Problems problems;
  const ActorLossSection& loss = c.actor_rollout_ref.actor.loss;
  CheckEstimator(c, problems);
  CheckLossKeys(loss, c.critic.loss_agg_mode.value_or(loss.loss_agg_mode), problems);
  CheckCorrection(c.algorithm.rollout_correction, loss.policy_loss, problems);
  CheckKlControl(c, problems);
  return problems;
}

std::vector<std::string> DpoProblems(const DpoSection& d) {
  using enum rl::DpoLossType;
  Problems problems;
  const auto say = [&](std::string text) { problems.push_back(std::move(text)); };
  const auto has = [&](rl::DpoLossType type) {
    return std::find(d.loss_type.begin(), d.loss_type.end(), type) != d.loss_type.end();
  };
  const auto that = [&](bool rl::DpoLossTraits::*trait, bool have) {
    std::vector<rl::DpoLossType> types;
    for (const rl::DpoLossType type : d.loss_type)
      if (rl::TraitsOf(type).*trait == have) types.push_back(type);
    return types;
  };
  // 1. Which losses.
  if (d.loss_type.empty()) say("dpo.loss_type is empty: name at least one loss");
  if (std::set(d.loss_type.begin(), d.loss_type.end()).size() != d.loss_type.size())
    say("dpo.loss_type names a loss twice: give it a weight instead, in dpo.loss_weights");
  if (!d.loss_weights.empty() && d.loss_weights.size() != d.loss_type.size()) {
    say(fmt::format(
        "dpo.loss_weights has {} numbers for the {} of dpo.loss_type: give one for each, "
        "or none",
        d.loss_weights.size(), d.loss_type.size()));
  }
  if (has(kSft) && d.sft_loss_weight > 0) {
    say("dpo.loss_type names sft, and dpo.sft_loss_weight is its weight too: set one of them only");
  }
  double learnt = d.sft_loss_weight;
  for (size_t i = 0; i < d.loss_type.size(); ++i) {
    const double weight = i < d.loss_weights.size() ? d.loss_weights[i] : 1;
    learnt += weight * (d.loss_type[i] == kSft ? 1 : d.preference_loss_weight);
  }
  if (learnt == 0)
    say("dpo.preference_loss_weight and dpo.sft_loss_weight are both 0: nothing would be learnt");

  // 2. Label smoothing.
  const std::vector<rl::DpoLossType> smooth = that(&rl::DpoLossTraits::label_smoothing, true);
  if (d.label_smoothing > 0 && smooth.empty()) {
    say(fmt::format("dpo.label_smoothing has no meaning with dpo.loss_type {}: set it to 0",
                    Names(d.loss_type)));
  }
  if (d.label_smoothing > 0 && smooth.size() > 1 && has(kSigmoid)) {
    say(fmt::format(
        "dpo.label_smoothing would be of sigmoid too, which TRL does not smooth, beside "
        "the others of {}: use robust or aot in place of sigmoid, or set it to 0",
        Names(d.loss_type)));
  }
  if (has(kExoPair) && d.label_smoothing == 0)
    say("dpo.label_smoothing must be above 0 with dpo.loss_type exo_pair: the paper has 1e-3");
  if (has(kRobust) && d.label_smoothing >= 0.5)
    say("dpo.label_smoothing must be below 0.5 with dpo.loss_type robust");

  // 3. Weights of pairs.
  const std::vector<rl::DpoLossType> sorted = that(&rl::DpoLossTraits::sorted, true);
  if (d.use_weighting && !sorted.empty()) {
    say(
        fmt::format("dpo.use_weighting weighs pairs, but dpo.loss_type {} compares answers of "
                    "different pairs: set it to false",
                    Names(sorted)));
  }

  // 4. Divergences and shapes.
  const std::vector<rl::DpoLossType> other = that(&rl::DpoLossTraits::scores, false);
  if (d.f_divergence_type != rl::FDivergence::kReverseKl && !other.empty()) {
    say(
        fmt::format("dpo.f_divergence_type {} has no meaning with dpo.loss_type {}: set it to "
                    "reverse_kl",
                    NameOf(d.f_divergence_type), Names(other)));
  }
  const DpoSection initial;
  if (d.f_divergence_type != rl::FDivergence::kAlphaDivergence &&
      d.f_alpha_divergence_coef != initial.f_alpha_divergence_coef) {
    say(
        fmt::format("dpo.f_alpha_divergence_coef is of dpo.f_divergence_type alpha_divergence "
                    "alone, which is {}: leave it at {}",
                    NameOf(d.f_divergence_type), initial.f_alpha_divergence_coef));
  }
  if (!has(kDiscopop) && d.discopop_tau != initial.discopop_tau) {
    say(
        fmt::format("dpo.discopop_tau is of dpo.loss_type discopop alone, which is {}: leave it at "
                    "{}",
                    Names(d.loss_type), initial.discopop_tau));
  }
  return problems;
}

}  // namespace keel::trainer
