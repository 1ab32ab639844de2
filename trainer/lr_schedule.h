// Learning-rate schedules, pure: a step's rate from its number. Torch-free.
#pragma once

#include <cstdint>
#include <string>

namespace keel::trainer {

enum class LrDecayStyle { kConstant, kLinear, kCosine, kWsd };

struct LrScheduleOptions {
  double lr = 1e-3;   // the peak
  double min_lr = 0;  // the floor of linear, cosine and WSD
  LrDecayStyle style = LrDecayStyle::kConstant;
  int64_t warmup_steps = 0;     // linear from lr / warmup_steps to lr
  int64_t decay_steps = 0;      // the step at which the floor is reached, warm-up included
  int64_t wsd_decay_steps = 0;  // WSD: length of the final decay (linear), within decay_steps
};

// The rate of update `step`, counted from 1.
double LearningRate(const LrScheduleOptions& options, int64_t step);

}  // namespace keel::trainer
