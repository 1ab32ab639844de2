// Learner: the updates of a step, of the critic and then of the actor, as the configuration has
// them. Owned by the RL task.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/context.h"
#include "trainer/config/config.h"
#include "trainer/engine/lr_schedule.h"
#include "trainer/metrics/step_line.h"
#include "trainer/rl/experience.h"
#include "trainer/rl/updates.h"

namespace keel::trainer::rl {

struct LearnerOptions {
  RlBatchOptions batch;
  LrScheduleOptions actor_schedule;
  LrScheduleOptions critic_schedule;
};

class Learner {
 public:
  // All must outlive this.
  Learner(const Config& config, const Roles& roles, parallel::ParallelContext& context,
          LearnerOptions options)
      : c_(config), roles_(roles), context_(context), options_(std::move(options)) {}

  // Which responses each update of an epoch takes. Not collective.
  std::vector<MiniBatch> MiniBatches(const RolloutBatch& batch, int64_t step, int64_t epoch) const;

  // ppo_epochs of both; the actor's from trainer.critic_warmup on. `*critic_steps` and
  // `actor_steps`: applied updates before, Adam's counts; the first is advanced, the actor's are in
  // the result. Adds actor/*, critic/* and timing_s/update_*.
  UpdateSums Learn(int64_t step, const RolloutBatch& batch, const Experience& experience,
                   int64_t actor_steps, int64_t* critic_steps, StepLine* metrics);

 private:
  void LearnValues(int64_t step, const RolloutBatch& batch, const Experience& experience,
                   int64_t* steps, StepLine* metrics);
  UpdateSums LearnPolicy(int64_t step, const RolloutBatch& batch, const Experience& experience,
                         int64_t steps, StepLine* metrics);

  const Config& c_;
  const Roles roles_;
  parallel::ParallelContext& context_;
  const LearnerOptions options_;
};

}  // namespace keel::trainer::rl
