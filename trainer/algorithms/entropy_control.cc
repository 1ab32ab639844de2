#include "trainer/algorithms/entropy_control.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace keel::trainer::rl {

void EntropyController::Update(double entropy) {
  coefficient_ = entropy <= options_.target ? std::min(coefficient_ + options_.step, options_.max)
                                            : std::max(coefficient_ - options_.step, options_.min);
  last_entropy_ = entropy;
}

Json EntropyController::State() const {
  // JSON has no infinity: no update has been seen.
  return {{"entropy_coeff", coefficient_},
          {"last_entropy", std::isfinite(last_entropy_) ? Json(last_entropy_) : Json()}};
}

Status EntropyController::Restore(const Json& state) {
  constexpr const char* kWhere = "entropy controller";
  if (state.is_null()) return Status::Ok();
  if (!state.is_object() || !state.contains("last_entropy"))
    return Status(StatusCode::kInvalidData, "entropy controller: expected its object");
  KEEL_ASSIGN_OR_RETURN(const double coefficient, GetDouble(state, "entropy_coeff", kWhere));
  double last = std::numeric_limits<double>::infinity();
  if (!state["last_entropy"].is_null()) {
    KEEL_ASSIGN_OR_RETURN(last, GetDouble(state, "last_entropy", kWhere));
  }
  if (!std::isfinite(coefficient) || coefficient < 0 || std::isnan(last)) {
    return Status(
        StatusCode::kInvalidData,
        fmt::format("entropy controller: entropy_coeff {} after an entropy of {} is no coefficient",
                    coefficient, last));
  }
  coefficient_ = coefficient;
  last_entropy_ = last;
  return Status::Ok();
}

}  // namespace keel::trainer::rl
