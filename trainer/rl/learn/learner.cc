#include "trainer/rl/learn/learner.h"

#include <string>
#include <utility>

#include "common/clock.h"

namespace keel::trainer::rl {

namespace {

MiniBatchOptions ActorMiniBatches(const Config& config) {
  const ActorLossSection& section = config.actor_rollout_ref.actor.loss;
  return {section.ppo_mini_batch_size.value_or(config.data.train_batch_size), section.shuffle,
          static_cast<uint64_t>(config.trainer.seed)};
}

MiniBatchOptions CriticMiniBatches(const Config& config) {
  MiniBatchOptions options = ActorMiniBatches(config);
  options.prompts_each = config.critic.ppo_mini_batch_size.value_or(options.prompts_each);
  return options;
}

// The divisor of seq-mean-token-sum-norm, the actor's and the critic's: a length that does not
// depend on the batch.
double ScaleFactor(const Config& config) {
  return static_cast<double>(config.actor_rollout_ref.actor.loss.loss_scale_factor.value_or(
      config.data.max_response_length));
}

// The configuration's own: ValidateConfig has parsed them.
BypassOptions BypassOf(const AlgorithmSection& algorithm) {
  const RolloutCorrectionSection& wanted = algorithm.rollout_correction;
  const RolloutCorrectionOptions parsed = CorrectionOf(wanted);
  // Without bypass_mode what the rules reject is out of the mask before the update.
  return {algorithm.rollout_correction.loss_type, parsed.level, parsed.upper, parsed.lower,
          wanted.bypass_mode ? parsed.rules : std::vector<RejectionRule>{}};
}

PolicyLossOptions PolicyLossOf(const Config& config) {
  const ActorLossSection& section = config.actor_rollout_ref.actor.loss;
  const PolicyLossSection& own = section.policy_loss;
  PolicyLossOptions loss;
  loss.mode = own.loss_mode;
  loss.bypass = BypassOf(config.algorithm);
  if (loss.bypass.loss == BypassLoss::kReinforce) loss.mode = PolicyLossMode::kBypassMode;
  loss.tau_pos = section.tau_pos;
  loss.tau_neg = section.tau_neg;
  loss.covariance = {own.clip_cov_ratio, own.clip_cov_lb, own.clip_cov_ub, own.kl_cov_ratio};
  loss.ppo_kl_coef = own.ppo_kl_coef;
  loss.dro_beta = own.dro_beta.value_or(0);
  loss.vespo = {own.vespo_k_pos, own.vespo_lambda_pos, own.vespo_k_neg, own.vespo_lambda_neg};
  loss.clip_ratio_low = section.clip_ratio_low.value_or(section.clip_ratio);
  loss.clip_ratio_high = section.clip_ratio_high.value_or(section.clip_ratio);
  loss.clip_ratio_c = section.clip_ratio_c;
  loss.aggregation = section.loss_agg_mode;
  loss.entropy_coeff = section.entropy_coeff;
  loss.use_kl_loss = section.use_kl_loss;
  loss.kl_loss_coef = section.kl_loss_coef;
  loss.kl_loss_type = KindOf(section.kl_loss_type);
  loss.kl_times_ratio = section.use_bias_correction_kl;
  loss.top_entropy_quantile = own.top_entropy_quantile;
  loss.off_policy_mask_threshold = own.off_policy_mask_threshold;
  return loss;
}

}  // namespace

Learner::Learner(const RlRun& run, const LearnerSchedules& schedules, EntropyController* entropy)
    : run_(run),
      schedules_(schedules),
      actor_mini_batches_(ActorMiniBatches(run.config)),
      critic_mini_batches_(CriticMiniBatches(run.config)),
      entropy_(entropy) {}

int64_t Learner::critic_epochs() const {
  return run_.config.critic.ppo_epochs.value_or(
      run_.config.actor_rollout_ref.actor.loss.ppo_epochs);
}

std::vector<MiniBatch> Learner::Passes(const BatchOutline& outline, int64_t step) const {
  std::vector<MiniBatch> passes;
  const auto add = [&](const MiniBatchOptions& options, int64_t epochs) {
    for (int64_t epoch = 0; epoch < epochs; ++epoch) {
      for (MiniBatch& one : CutIntoMiniBatches(outline, options, step, epoch))
        passes.push_back(std::move(one));
    }
  };
  add(actor_mini_batches_, run_.config.actor_rollout_ref.actor.loss.ppo_epochs);
  if (run_.roles.critic != nullptr) add(critic_mini_batches_, critic_epochs());
  return passes;
}

Learner::Learned Learner::Learn(int64_t step, const BatchShare& share, const Experience& experience,
                                int64_t actor_steps, int64_t critic_steps, StepLine* metrics) {
  Stopwatch watch;
  Learned learned;
  MoveSeconds moves;
  if (run_.roles.critic != nullptr) {
    const UpdateSums critic = LearnValues(step, share, experience, critic_steps, metrics);
    learned.critic_applied = critic.applied;
    learned.critic_skipped = critic.skipped;
    moves += critic.moves;
    metrics->Set("critic/skipped_updates", critic.skipped);
  }
  metrics->Set("timing_s/update_critic", watch.Lap());
  if (step > run_.config.trainer.critic_warmup) {
    learned.actor = LearnPolicy(step, share, experience, actor_steps, metrics);
    moves += learned.actor.moves;
  }
  metrics->Set("timing_s/update_actor", watch.Lap());
  // param_load and param_offload alone are of the sync.
  metrics->Set("timing_s/update_param_load", moves.param_load);
  metrics->Set("timing_s/update_param_offload", moves.param_offload);
  metrics->Set("timing_s/grad_load", moves.grad_load);
  metrics->Set("timing_s/grad_offload", moves.grad_offload);
  metrics->Set("timing_s/optimizer_load", moves.optimizer_load);
  metrics->Set("timing_s/optimizer_offload", moves.optimizer_offload);
  return learned;
}

UpdateSums Learner::LearnValues(int64_t step, const BatchShare& share, const Experience& experience,
                                int64_t steps, StepLine* metrics) {
  const CriticSection& critic = run_.config.critic;
  const ActorLossSection& actor = run_.config.actor_rollout_ref.actor.loss;
  CriticUpdate update;
  update.targets = {experience.values, experience.returns};
  update.loss.cliprange_value = critic.cliprange_value;
  update.loss.aggregation = critic.loss_agg_mode.value_or(actor.loss_agg_mode);
  update.scale_factor = ScaleFactor(run_.config);
  EpochUpdates one{{}, run_.options, LearningRate(schedules_.critic, step), steps};
  one.options.micro_batch_size =
      critic.ppo_micro_batch_size_per_gpu.value_or(one.options.micro_batch_size);
  UpdateSums all;
  for (int64_t epoch = 0; epoch < critic_epochs(); ++epoch) {
    one.updates = CutIntoMiniBatches(share.outline(), critic_mini_batches_, step, epoch);
    one.t = steps + all.applied;
    all.AddEpoch(UpdateCritic(*run_.roles.critic, run_.context, share, one, update), epoch);
  }
  metrics->Set(all.metrics);
  metrics->Set("critic/lr", one.lr);
  return all;
}

UpdateSums Learner::LearnPolicy(int64_t step, const BatchShare& share, const Experience& experience,
                                int64_t steps, StepLine* metrics) {
  const ActorLossSection& section = run_.config.actor_rollout_ref.actor.loss;
  ActorUpdate update;
  update.targets = {experience.old_log_probs, experience.advantages, experience.ref_log_probs,
                    experience.weights, experience.sampling_log_probs};
  if (section.use_adaptive_entropy) update.entropy = entropy_;
  update.whole = {experience.whole.old_log_probs, experience.whole.old_entropies,
                  experience.whole.advantages, experience.whole.mask};
  update.loss = PolicyLossOf(run_.config);
  update.scale_factor = ScaleFactor(run_.config);
  update.temperature = run_.config.actor_rollout_ref.rollout.temperature;
  update.acts = PolicyActsInUpdate(run_, MiniBatches(share.outline(), step, 0).size());
  // Its schedule begins with its own first update, as the moments do.
  const int64_t own_step = step - run_.config.trainer.critic_warmup;
  EpochUpdates one{{}, run_.options, LearningRate(schedules_.actor, own_step), steps};
  UpdateSums all;
  for (int64_t epoch = 0; epoch < section.ppo_epochs; ++epoch) {
    update.draw = {static_cast<uint64_t>(run_.config.trainer.seed), step, epoch};
    update.tells =
        update.acts || (epoch == 0 && run_.config.algorithm.rollout_correction.bypass_mode);
    update.begins_old = epoch == 0 && !run_.config.algorithm.rollout_correction.bypass_mode;
    one.updates = MiniBatches(share.outline(), step, epoch);
    one.t = steps + all.applied;
    all.AddEpoch(UpdateActor(*run_.roles.actor, run_.context, share, one, update), epoch);
  }
  metrics->Set(all.metrics);
  metrics->Set("actor/lr", one.lr);
  if (section.use_adaptive_entropy) metrics->Set("actor/entropy_coeff", entropy_->coefficient());
  return all;
}

}  // namespace keel::trainer::rl
