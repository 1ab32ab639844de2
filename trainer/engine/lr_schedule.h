// Learning-rate schedules, pure: a step's rate from its number, by the numbering of transformers'
// get_scheduler and of Megatron's OptimizerParamScheduler: an update has the rate at the number of
// updates before it. So warm-up begins at 0, the first step after it is at the peak, and the last
// of decay_steps is still above the floor. Torch-free.
#pragma once

#include <cstdint>

#include "trainer/config/choices.h"

namespace keel::trainer {

struct LrScheduleOptions {
  double lr = 1e-3;   // the peak; 0 leaves the weights as they are
  double min_lr = 0;  // the floor of linear, cosine and WSD
  LrDecayStyle style = LrDecayStyle::kConstant;
  int64_t warmup_steps = 0;     // linear: update i of it has lr * (i - 1) / warmup_steps
  int64_t decay_steps = 0;      // updates after which the floor is reached, warm-up included
  int64_t wsd_decay_steps = 0;  // WSD: length of the final decay (linear), within decay_steps
};

// The rate of update `step`, counted from 1.
double LearningRate(const LrScheduleOptions& options, int64_t step);

// The highest rate among updates 1 to `steps`: 0 when none of them can change a weight.
double HighestLearningRate(const LrScheduleOptions& options, int64_t steps);

}  // namespace keel::trainer
