#include "trainer/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace keel::trainer {

double LearningRate(const LrScheduleOptions& o, int64_t step) {
  if (step <= o.warmup_steps)
    return o.lr * static_cast<double>(step) / static_cast<double>(o.warmup_steps);
  // How far from `begin` to decay_steps, in [0, 1].
  const auto progress = [&](int64_t begin) {
    if (o.decay_steps <= begin) return 1.0;
    return std::clamp(
        static_cast<double>(step - begin) / static_cast<double>(o.decay_steps - begin), 0.0, 1.0);
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
      return step <= begin ? o.lr : o.lr + (o.min_lr - o.lr) * progress(begin);
    }
  }
  return o.lr;
}

}  // namespace keel::trainer
