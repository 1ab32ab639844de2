#include "trainer/rl/learner.h"

#include <string>
#include <utility>

#include "common/clock.h"

namespace keel::trainer::rl {

namespace {

// Over epochs: counts add up; a metric is the mean over those up to `epoch`.
void Add(const UpdateSums& one, int64_t epoch, UpdateSums* all, Json* metrics) {
  all->stop = all->stop || one.stop;
  all->busy = all->busy || one.busy;
  all->applied += one.applied;
  all->skipped += one.skipped;
  all->grad_norm = one.grad_norm;
  all->moves = one.moves;
  for (const auto& [name, value] : one.metrics) {
    Json& slot = (*metrics)[name];
    slot = epoch == 0 ? value
                      : (slot.get<double>() * static_cast<double>(epoch) + value) /
                            static_cast<double>(epoch + 1);
  }
}

PolicyLossOptions PolicyLossOf(const ActorLossSection& section) {
  PolicyLossOptions loss;
  loss.mode = section.policy_loss.loss_mode;
  loss.clip_ratio_low = section.clip_ratio_low.value_or(section.clip_ratio);
  loss.clip_ratio_high = section.clip_ratio_high.value_or(section.clip_ratio);
  loss.clip_ratio_c = section.clip_ratio_c;
  loss.aggregation = section.loss_agg_mode;
  loss.entropy_coeff = section.entropy_coeff;
  loss.use_kl_loss = section.use_kl_loss;
  loss.kl_loss_coef = section.kl_loss_coef;
  loss.kl_loss_type = KindOf(section.kl_loss_type);
  return loss;
}

}  // namespace

std::vector<MiniBatch> Learner::MiniBatches(const RolloutBatch& batch, int64_t step,
                                            int64_t epoch) const {
  const ActorLossSection& section = c_.actor_rollout_ref.actor.loss;
  return CutIntoMiniBatches(batch, section.ppo_mini_batch_size.value_or(c_.data.train_batch_size),
                            section.shuffle, static_cast<uint64_t>(c_.trainer.seed), step, epoch);
}

UpdateSums Learner::Learn(int64_t step, const RolloutBatch& batch, const Experience& experience,
                          const StepNotices& notices, int64_t actor_steps, int64_t* critic_steps,
                          Json* metrics) {
  Stopwatch watch;
  UpdateSums critic;
  if (roles_.critic != nullptr)
    critic = LearnValues(step, batch, experience, notices, critic_steps, metrics);
  (*metrics)["timing_s/update_critic"] = watch.Lap();
  UpdateSums actor;
  if (step > c_.trainer.critic_warmup) {
    // Once is enough to tell.
    const StepNotices told = roles_.critic != nullptr ? StepNotices{} : notices;
    actor = LearnPolicy(step, batch, experience, told, actor_steps, metrics);
  }
  (*metrics)["timing_s/update_actor"] = watch.Lap();
  actor.stop = actor.stop || critic.stop;
  actor.busy = actor.busy || critic.busy;
  return actor;
}

UpdateSums Learner::LearnValues(int64_t step, const RolloutBatch& batch,
                                const Experience& experience, const StepNotices& notices,
                                int64_t* steps, Json* metrics) {
  const ActorLossSection& actor = c_.actor_rollout_ref.actor.loss;
  ValueLossOptions loss;
  loss.cliprange_value = c_.critic.cliprange_value;
  loss.aggregation = c_.critic.loss_agg_mode.value_or(actor.loss_agg_mode);
  RlBatchOptions options = options_.batch;
  options.micro_batch_size =
      c_.critic.ppo_micro_batch_size_per_gpu.value_or(options.micro_batch_size);
  const double lr = LearningRate(options_.critic_schedule, step);
  UpdateSums all;
  for (int64_t epoch = 0; epoch < c_.critic.ppo_epochs.value_or(actor.ppo_epochs); ++epoch) {
    const UpdateSums one =
        UpdateCritic(*roles_.critic, context_, batch, MiniBatches(batch, step, epoch),
                     {experience.values, experience.returns}, loss, options, lr, *steps,
                     epoch == 0 ? notices : StepNotices{});
    *steps += one.applied;
    Add(one, epoch, &all, metrics);
  }
  (*metrics)["critic/lr"] = lr;
  return all;
}

UpdateSums Learner::LearnPolicy(int64_t step, const RolloutBatch& batch,
                                const Experience& experience, const StepNotices& notices,
                                int64_t steps, Json* metrics) {
  const ActorLossSection& section = c_.actor_rollout_ref.actor.loss;
  const PolicyLossOptions loss = PolicyLossOf(section);
  // A length that does not depend on the batch.
  const auto scale_factor =
      static_cast<double>(section.loss_scale_factor.value_or(c_.data.max_response_length));
  const PolicyTargets targets{experience.old_log_probs, experience.advantages,
                              experience.ref_log_probs, experience.weights};
  const double lr = LearningRate(options_.actor_schedule, step);
  TokenLogProbs policy;  // asked for where nobody else has found it
  const bool asks = PolicyActsInUpdate(c_, roles_, MiniBatches(batch, step, 0).size());
  UpdateSums all;
  for (int64_t epoch = 0; epoch < section.ppo_epochs; ++epoch) {
    const UpdateSums one = UpdateActor(
        *roles_.actor, context_, batch, MiniBatches(batch, step, epoch), targets, loss,
        scale_factor, c_.actor_rollout_ref.rollout.temperature, options_.batch, lr,
        steps + all.applied, epoch == 0 ? notices : StepNotices{}, asks ? &policy : nullptr);
    Add(one, epoch, &all, metrics);
  }
  if (asks) AddPolicyMetrics(batch, policy, metrics);
  (*metrics)["timing_s/optimizer_load"] = all.moves.optimizer_load;
  (*metrics)["timing_s/optimizer_offload"] = all.moves.optimizer_offload;
  (*metrics)["actor/lr"] = lr;
  return all;
}

}  // namespace keel::trainer::rl
