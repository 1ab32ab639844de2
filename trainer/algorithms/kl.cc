#include "trainer/algorithms/kl.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace keel::trainer::rl {

float EstimateKl(KlEstimator estimator, float log_prob, float ref_log_prob) {
  const float difference = log_prob - ref_log_prob;
  switch (estimator) {
    case KlEstimator::kK1:
      return difference;
    case KlEstimator::kAbs:
      return std::fabs(difference);
    case KlEstimator::kK2:
      return 0.5f * difference * difference;
    case KlEstimator::kK3:
      break;
  }
  const float reverse = std::clamp(-difference, -20.0f, 20.0f);
  return std::clamp(std::exp(reverse) - reverse - 1.0f, -10.0f, 10.0f);
}

void KlController::Update(double kl, int64_t samples) {
  if (options_.type != KlControl::kAdaptive) return;
  const double error = std::clamp(kl / options_.target_kl - 1, -kMostKlError, kMostKlError);
  coefficient_ *= 1 + error * static_cast<double>(samples) / static_cast<double>(options_.horizon);
}

Json KlController::State() const {
  return {{"type", NameOf(options_.type)}, {"kl_coef", coefficient_}};
}

Status KlController::Restore(const Json& state) {
  if (!state.is_object())
    return Status(StatusCode::kInvalidData, "KL controller: expected an object");
  KEEL_ASSIGN_OR_RETURN(const double coefficient, GetDouble(state, "kl_coef", "KL controller"));
  if (!std::isfinite(coefficient) || coefficient < 0) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("KL controller: kl_coef {} is no coefficient", coefficient));
  }
  const bool adapted = state.value("type", Json()) != NameOf(KlControl::kFixed);
  if (options_.type == KlControl::kAdaptive && adapted) coefficient_ = coefficient;
  return Status::Ok();
}

double ApplyKlPenalty(const PackedView& responses, KlEstimator estimator,
                      std::span<const float> old_log_probs, std::span<const float> ref_log_probs,
                      double coefficient, std::span<float> rewards) {
  CheckPacked(responses);
  const size_t n = responses.tokens();
  if (old_log_probs.size() != n || ref_log_probs.size() != n || rewards.size() != n) {
    throw Error(StatusCode::kInternal,
                fmt::format("KL penalty: expected {} tokens, found {} old and {} reference "
                            "log-probabilities and {} rewards",
                            n, old_log_probs.size(), ref_log_probs.size(), rewards.size()));
  }
  double mean_of_means = 0;
  int64_t counted = 0;
  for (size_t s = 0; s < responses.sequences(); ++s) {
    const int64_t tokens = PolicyTokens(responses, s);
    if (tokens == 0) continue;
    double sum = 0;
    for (size_t t = responses.begin(s); t < responses.end(s); ++t) {
      if (responses.mask[t] == 0) continue;
      const double kl = EstimateKl(estimator, old_log_probs[t], ref_log_probs[t]);
      sum += kl;
      rewards[t] = static_cast<float>(rewards[t] - coefficient * kl);
    }
    mean_of_means += sum / static_cast<double>(tokens);
    ++counted;
  }
  return counted > 0 ? mean_of_means / static_cast<double>(counted) : 0;
}

}  // namespace keel::trainer::rl
