#include "trainer/engine/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace keel::trainer {

double LearningRate(const LrScheduleOptions& o, int64_t step) {
  const int64_t done = step - 1;
  if (o.warmup_steps > 0 && done <= o.warmup_steps)
    return o.lr * static_cast<double>(done) / static_cast<double>(o.warmup_steps);
  // How far from `begin` to decay_steps, in [0, 1].
  const auto progress = [&](int64_t begin) {
    if (o.decay_steps <= begin) return 1.0;
    return std::clamp(
        static_cast<double>(done - begin) / static_cast<double>(o.decay_steps - begin), 0.0, 1.0);
  };
  switch (o.style) {
    case LrDecayStyle::kConstant:
      return o.lr;
    case LrDecayStyle::kLinear:
      return o.lr + (o.min_lr - o.lr) * progress(o.warmup_steps);
    case LrDecayStyle::kCosine:
      return o.min_lr +
             0.5 * (o.lr - o.min_lr) * (1 + std::cos(std::numbers::pi * progress(o.warmup_steps)));
    case LrDecayStyle::kWsd: {
      const int64_t begin = std::max(o.warmup_steps, o.decay_steps - o.wsd_decay_steps);
      return done <= begin ? o.lr : o.lr + (o.min_lr - o.lr) * progress(begin);
    }
  }
  return o.lr;
}

double HighestLearningRate(const LrScheduleOptions& o, int64_t steps) {
  // It rises in the warm-up, and never after it.
  return LearningRate(o, std::clamp<int64_t>(o.warmup_steps + 1, 1, std::max<int64_t>(1, steps)));
}

}  // namespace keel::trainer
