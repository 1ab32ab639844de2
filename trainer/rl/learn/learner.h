// Learner: the updates of a step, of the critic and then of the actor, as the configuration has
// them. Owned by the RL task.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/engine/lr_schedule.h"
#include "trainer/metrics/step_line.h"
#include "trainer/rl/learn/experience.h"
#include "trainer/rl/learn/updates.h"

namespace keel::trainer::rl {

struct LearnerSchedules {
  LrScheduleOptions actor, critic;
};

class Learner {
 public:
  // `entropy`: of use_adaptive_entropy; must outlive it.
  Learner(const RlRun& run, const LearnerSchedules& schedules, EntropyController* entropy);

  // Which responses each of the actor's updates of an epoch takes. Not collective.
  std::vector<MiniBatch> MiniBatches(const BatchOutline& outline, int64_t step,
                                     int64_t epoch) const {
    return CutIntoMiniBatches(outline, actor_mini_batches_, step, epoch);
  }
  // All that the step looks at: the updates of all epochs, of the critic, too. Not collective.
  std::vector<MiniBatch> Passes(const BatchOutline& outline, int64_t step) const;

  struct Learned {
    UpdateSums actor;
    int64_t critic_applied = 0, critic_skipped = 0;  // updates
  };
  // ppo_epochs of both; the actor's from trainer.critic_warmup on. `critic_steps` and
  // `actor_steps`: applied updates before, Adam's counts. Adds actor/*, critic/* and
  // timing_s/update_*, but for what AddUpdateMetrics says of Learned::actor.policy.
  Learned Learn(int64_t step, const BatchShare& share, const Experience& experience,
                int64_t actor_steps, int64_t critic_steps, StepLine* metrics);

 private:
  UpdateSums LearnValues(int64_t step, const BatchShare& share, const Experience& experience,
                         int64_t steps, StepLine* metrics);
  UpdateSums LearnPolicy(int64_t step, const BatchShare& share, const Experience& experience,
                         int64_t steps, StepLine* metrics);
  int64_t critic_epochs() const;

  const RlRun run_;
  const LearnerSchedules schedules_;
  const MiniBatchOptions actor_mini_batches_, critic_mini_batches_;
  EntropyController* const entropy_;
};

}  // namespace keel::trainer::rl
