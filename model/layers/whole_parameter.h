// Parameters that every TP rank has whole, and which ranks' gradients of them are summed.
#pragma once

#include "parallel/layout.h"

namespace keel::model {

inline constexpr parallel::AxisSet kWhole = parallel::kDataAxes.With({parallel::Axis::kTp});
// `over_tp`: each TP rank sees only some tokens or heads.
constexpr parallel::AxisSet WholeSum(bool over_tp) {
  return over_tp ? kWhole : parallel::kDataAxes;
}

}  // namespace keel::model
