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

// Whether a validation's value is of the same thing by two resolved configurations: of one metric,
// and, where that is a loss of preferences, of the same loss.
Result<bool> MeasureAlike(const std::string& one, const std::string& other);

}  // namespace keel::trainer
