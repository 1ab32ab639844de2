#include "trainer/rl/learn/experience.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/clock.h"
#include "common/guarded.h"
#include "trainer/algorithms/advantages.h"
#include "trainer/algorithms/rollout_correction.h"
#include "trainer/algorithms/value_loss.h"
#include "trainer/sync/group_bytes.h"

namespace keel::trainer::rl {

namespace {

// training/rollout_probs_diff_{max,mean,std} and their correlation: verl's view of how far the
// generating and the training model are apart.
void AddProbabilityGap(const RolloutBatch& batch, const std::vector<float>& trainer,
                       const std::vector<float>& rollout, StepLine* metrics) {
  double n = 0, most = 0, sum = 0, squares = 0, most_log = 0;
  double sx = 0, sy = 0, sxx = 0, syy = 0, sxy = 0;
  for (size_t i = 0; i < trainer.size(); ++i) {
    if (batch.mask[i] == 0) continue;
    const double x = std::exp(static_cast<double>(rollout[i]));
    const double y = std::exp(static_cast<double>(trainer[i]));
    const double gap = std::abs(x - y);
    n += 1;
    most = std::max(most, gap);
    most_log = std::max(most_log, std::abs(static_cast<double>(rollout[i]) - trainer[i]));
    sum += gap;
    squares += gap * gap;
    sx += x;
    sy += y;
    sxx += x * x;
    syy += y * y;
    sxy += x * y;
  }
  if (n == 0) return;
  const double mean = sum / n;
  metrics->Set("training/rollout_probs_diff_max", most);
  metrics->Set("training/rollout_probs_diff_mean", mean);
  metrics->Set("training/rollout_probs_diff_std",
               std::sqrt(std::max(0.0, squares / n - mean * mean)));
  metrics->Set("training/rollout_log_probs_diff_max", most_log);
  const double deviations = (n * sxx - sx * sx) * (n * syy - sy * sy);
  metrics->Set("training/rollout_actor_probs_pearson_corr",
               deviations > 0 ? (n * sxy - sx * sy) / std::sqrt(deviations) : 1.0);
}

std::vector<double> Counted(const RolloutBatch& batch, const std::vector<float>& values) {
  std::vector<double> counted;
  for (size_t i = 0; i < values.size(); ++i)
    if (batch.mask[i] != 0) counted.push_back(values[i]);
  return counted;
}

// Values that the verifier gave beside the score, [K][S]: a response without a score has 0.
std::vector<std::vector<double>> NamedRewards(const RolloutBatch& batch,
                                              const std::vector<std::string>& keys) {
  std::vector<std::vector<double>> rewards;
  for (const std::string& key : keys) {
    std::vector<double>& values = rewards.emplace_back();
    for (const Response& response : batch.responses)
      values.push_back(NamedValue(response, key, "algorithm.gdpo_reward_keys"));
  }
  return rewards;
}

// The loss looks at all tokens of a mini-batch to choose among them.
bool ChoosesAmongAll(const PolicyLossSection& loss) {
  return TraitsOf(loss.loss_mode).covariance || loss.top_entropy_quantile < 1;
}

}  // namespace

bool PolicyActsInUpdate(const RlRun& run, size_t updates) {
  const Config& config = run.config;
  const RolloutCorrectionSection& correction = config.algorithm.rollout_correction;
  const ActorLossSection& loss = config.actor_rollout_ref.actor.loss;
  return updates == 1 && loss.ppo_epochs == 1 && !ChoosesAmongAll(loss.policy_loss) &&
         !TraitsOf(config.algorithm.adv_estimator).sum_pi_squared &&
         correction.wants() == nullptr && !config.algorithm.use_kl_in_reward &&
         run.roles.critic == nullptr && config.trainer.critic_warmup == 0;
}

void AddPolicyMetrics(const RolloutBatch& batch, const TokenLogProbs& policy, StepLine* metrics) {
  const std::vector<double> entropies = Counted(batch, policy.entropies);
  double mean = 0;
  for (const double one : entropies) mean += one / static_cast<double>(entropies.size());
  metrics->Set("actor/entropy_before", mean);
  const std::vector<float> rollout = batch.rollout_log_probs();
  if (rollout.empty() || rollout.size() != policy.log_probs.size()) return;
  AddProbabilityGap(batch, policy.log_probs, rollout, metrics);
  metrics->Set(RolloutGapMetrics(batch.packed(), policy.log_probs, rollout));
}

RolloutCorrectionOptions CorrectionOf(const RolloutCorrectionSection& wanted) {
  RolloutCorrectionOptions options = ValueOrThrow(RolloutCorrectionOptions::Parse(
      wanted.rollout_is, wanted.rollout_is_threshold, wanted.rollout_is_batch_normalize,
      wanted.rollout_rs.value_or(""), wanted.rollout_rs_threshold.value_or("")));
  options.m2po_threshold = wanted.m2po_threshold;
  return options;
}

void AddUpdateMetrics(const RolloutCorrectionSection& wanted, const RolloutBatch& batch,
                      const TokenLogProbs& policy, StepLine* metrics) {
  if (!wanted.bypass_mode) return AddPolicyMetrics(batch, policy, metrics);
  metrics->Set(CorrectRollout(batch.packed(), policy.log_probs, batch.rollout_log_probs(),
                              CorrectionOf(wanted))
                   .metrics);
}

namespace {

// A reward that is no finite number ends the run, by name: nothing is learnt from it, nor from the
// other responses of its group, whose advantages it would spoil.
void RequireFinite(const RolloutBatch& batch, std::span<const float> rewards, bool with_kl) {
  for (size_t s = 0; s < batch.responses.size(); ++s) {
    for (auto t = batch.boundaries[s]; t < batch.boundaries[s + 1]; ++t) {
      const float reward = rewards[static_cast<size_t>(t)];
      if (std::isfinite(reward)) continue;
      const Response& response = batch.responses[s];
      throw Error(
          StatusCode::kInvalidData,
          fmt::format(
              "rewards: token {} of response {} of row {} has a reward of {}: expected a "
              "number within fp32; the verifier's score is {}{}",
              t - batch.boundaries[s], response.sample, response.row, reward, response.score,
              with_kl ? ", and the KL penalty is taken off it (algorithm.use_kl_in_reward)" : ""));
    }
  }
}

// What each response that is scored is given. Where no token counts that could carry the score, as
// of one that was left out of the loss, it is the score, as in critic/score.
std::vector<double> RewardSums(const RolloutBatch& batch, const PackedView& counted,
                               std::span<const float> rewards) {
  std::vector<double> sums;
  for (size_t s = 0; s < batch.responses.size(); ++s) {
    if (batch.scored[s] == 0) continue;
    double sum = PolicyTokens(counted, s) == 0 ? batch.responses[s].score : 0;
    for (size_t t = counted.begin(s); t < counted.end(s); ++t)
      sum += static_cast<double>(rewards[t]);
    sums.push_back(sum);
  }
  return sums;
}

// Steps 3 to 5 of MakeExperience, on rank 0: from log-probabilities and values of all tokens to
// what they are worth.
void Value(const RlRun& run, KlController* kl, const std::vector<float>& sum_pi_squared,
           RolloutBatch* batch, Experience* e, StepLine* metrics) {
  const AlgorithmSection& algorithm = run.config.algorithm;
  // 3. Rewards per token, less the divergence from the reference where it belongs there.
  const auto counted = [&] {
    return TraitsOf(algorithm.adv_estimator).groups ? batch->packed_groups() : batch->packed();
  };
  std::vector<float> rewards = PlaceScores(counted(), batch->scores());
  if (algorithm.use_kl_in_reward) {
    const KlKind kind = KindOf(algorithm.kl_penalty);
    const double divergence = ApplyKlPenalty(counted(), kind.estimator, e->old_log_probs,
                                             e->ref_log_probs, kl->coefficient(), rewards);
    metrics->Set("actor/reward_kl_penalty", divergence);
    metrics->Set("actor/reward_kl_penalty_coeff", kl->coefficient());
    kl->Update(divergence, static_cast<int64_t>(batch->responses.size()));
  }
  RequireFinite(*batch, rewards, algorithm.use_kl_in_reward);
  metrics->SetSpread("critic/rewards", RewardSums(*batch, counted(), rewards));

  // 4. Correction for a rollout that was not the trainer's policy.
  const RolloutCorrectionSection& wanted = algorithm.rollout_correction;
  // (Bypassed, the old log-probabilities are the rollout's: the loss weighs by the current ones.)
  if (!wanted.bypass_mode && (wanted.rollout_is || wanted.rollout_rs || wanted.m2po_threshold)) {
    RolloutCorrection found = CorrectRollout(batch->packed(), e->old_log_probs,
                                             batch->rollout_log_probs(), CorrectionOf(wanted));
    e->weights = std::move(found.weights);
    batch->Reject(found.mask);
    metrics->Set(found.metrics);
  }

  // 5. Advantages, over the whole batch.
  AdvantageOptions advantage;
  advantage.estimator = algorithm.adv_estimator;
  advantage.gamma = algorithm.gamma;
  advantage.lam = algorithm.lam;
  advantage.norm_adv_by_std_in_grpo = algorithm.norm_adv_by_std_in_grpo;
  advantage.component_weights = algorithm.gdpo_reward_weights;
  const std::vector<int64_t> groups = batch->groups();
  std::vector<float> baselines;
  for (const Response& r : batch->responses) baselines.push_back(static_cast<float>(r.baseline));
  const std::vector<std::vector<double>> components =
      NamedRewards(*batch, algorithm.gdpo_reward_keys);
  AdvantageInputs inputs{counted(), rewards, groups, e->values, baselines};
  inputs.log_probs = e->old_log_probs;
  inputs.sum_pi_squared = sum_pi_squared;
  inputs.rollout_is_weights = e->weights;
  inputs.components = components;
  Advantages result = ComputeAdvantages(inputs, advantage);
  e->advantages = std::move(result.advantages);
  e->returns = std::move(result.returns);
  metrics->SetSpread("critic/advantages", Counted(*batch, e->advantages));
  metrics->SetSpread("critic/returns", Counted(*batch, e->returns));
  if (!e->values.empty()) {
    const std::vector<double> values = Counted(*batch, e->values);
    metrics->SetSpread("critic/values", values);
    if (const auto known = ExplainedVariance(values, Counted(*batch, e->returns)))
      metrics->Set("critic/vf_explained_var", *known);
  }
  const PolicyLossSection& loss = run.config.actor_rollout_ref.actor.loss.policy_loss;
  if (loss.off_policy_mask_threshold) {
    e->sampling_log_probs = batch->rollout_log_probs();
    if (e->sampling_log_probs.size() != batch->mask.size()) e->sampling_log_probs.clear();
  }
  if (ChoosesAmongAll(loss)) {
    e->whole.old_log_probs = e->old_log_probs;
    e->whole.advantages = e->advantages;
    e->whole.mask = batch->mask;
  }
}

}  // namespace

Experience MakeExperience(const RlRun& run, const std::vector<MiniBatch>& updates, KlController* kl,
                          RolloutBatch* whole, BatchShare* share, StepLine* metrics) {
  const Roles& roles = run.roles;
  const bool rank0 = run.context.rank() == 0;
  const double temperature = run.config.actor_rollout_ref.rollout.temperature;
  Experience e;
  Stopwatch watch;

  // 1. The policy that acted, as the trainer sees it; or, bypassed, as the rollout saw it.
  const bool bypassed = run.config.algorithm.rollout_correction.bypass_mode;
  const bool asked = !bypassed && !PolicyActsInUpdate(run, updates.size());
  if (bypassed && rank0) e.old_log_probs = whole->rollout_log_probs();
  std::vector<float> sum_pi_squared;
  if (asked) {
    TokenLogProbs old =
        ResponseLogProbs(*roles.actor, run.context, *share, updates, run.options, temperature, true,
                         TraitsOf(run.config.algorithm.adv_estimator).sum_pi_squared);
    if (rank0) AddPolicyMetrics(*whole, old, metrics);
    e.old_log_probs = std::move(old.log_probs);
    e.whole.old_entropies = std::move(old.entropies);
    sum_pi_squared = std::move(old.sum_pi_squared);
  }
  const double lap = watch.Lap();
  metrics->Set("timing_s/old_log_prob", bypassed || asked ? lap : 0.0);

  // 2. Reference and critic.
  if (roles.ref != nullptr) {
    const BaseOnly base(roles.ref == roles.actor ? roles.ref : nullptr);
    RlBatchOptions ref = run.options;
    ref.micro_batch_size =
        run.config.actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu.value_or(
            ref.micro_batch_size);
    e.ref_log_probs =
        ResponseLogProbs(*roles.ref, run.context, *share, updates, ref, temperature, false)
            .log_probs;
  }
  metrics->Set("timing_s/ref", watch.Lap());
  if (roles.critic != nullptr)
    e.values = ResponseValues(*roles.critic, run.context, *share, updates, run.options);
  metrics->Set("timing_s/values", watch.Lap());

  // 3 to 5. What all of it is worth; to each rank what it learns from.
  Status valued = Status::Ok();
  if (rank0) {
    valued = Guarded([&] {
      Value(run, kl, sum_pi_squared, whole, &e, metrics);
      return Status::Ok();
    });
  }
  ThrowIfError(ShareStatus(run.context.world(), valued, run.options.device));
  share->HandOutMask(run.context, run.options.device, *whole);
  share->HandOutValues(run.context, run.options.device, e.Columns());
  metrics->Set("timing_s/adv", watch.Lap());
  return e;
}

}  // namespace keel::trainer::rl
