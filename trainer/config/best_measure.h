// By which validation result, lowest or highest, a checkpoint was to be judged.
#pragma once

#include <string>

#include "common/status.h"
#include "trainer/config/choices.h"

namespace keel::trainer {

struct BestMeasure {
  std::string metric;              // trainer.keep_best_metric
  BestMode mode = BestMode::kMin;  // trainer.keep_best_mode
};

// As the resolved configuration says that a checkpoint was saved with. A key that it does not have
// counts as having had its default.
Result<BestMeasure> BestMeasureOf(const std::string& saved);

}  // namespace keel::trainer
