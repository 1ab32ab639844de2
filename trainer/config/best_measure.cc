#include "trainer/config/best_measure.h"

#include <algorithm>
#include <vector>

#include "common/options/flat_values.h"
#include "trainer/config/config.h"
#include "trainer/config/sections.h"

namespace keel::trainer {

Result<BestMeasure> BestMeasureOf(const std::string& saved) {
  KEEL_ASSIGN_OR_RETURN(const options::FlatValues values,
                        options::Flatten({"the checkpoint's config.yaml", saved}));
  const TrainerSection defaults;
  BestMeasure measure{std::string(NameOf(defaults.keep_best_metric)), defaults.keep_best_mode};
  if (const auto metric = values.find("trainer.keep_best_metric"); metric != values.end())
    measure.metric = metric->second;
  if (const auto mode = values.find("trainer.keep_best_mode"); mode != values.end())
    measure.mode = ParseName<BestMode>(mode->second).value_or(defaults.keep_best_mode);
  return measure;
}

Result<bool> MeasureAlike(const std::string& one, const std::string& other) {
  KEEL_ASSIGN_OR_RETURN(const BestMeasure measure, BestMeasureOf(one));
  KEEL_ASSIGN_OR_RETURN(const BestMeasure others, BestMeasureOf(other));
  if (measure.metric != others.metric) return false;
  if (measure.metric != NameOf(BestMetric::kLoss)) return true;
  KEEL_ASSIGN_OR_RETURN(const std::vector<options::ValueChange> changes, ConfigChanges(one, other));
  return std::ranges::none_of(
      changes, [](const options::ValueChange& change) { return change.path.starts_with("dpo."); });
}

}  // namespace keel::trainer
