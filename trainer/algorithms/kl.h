// Estimates of the KL divergence between the policy and its reference from log-probabilities of
// sampled tokens (Schulman 2020), the controller of its weight, and its place in the reward.
// Torch-free; the differentiable form is in policy_loss.h.
#pragma once

#include <cstdint>
#include <span>

#include "common/json.h"
#include "common/status.h"
#include "trainer/algorithms/choices.h"
#include "trainer/algorithms/packed.h"

namespace keel::trainer::rl {

// k1 = p - r; k2 = (p - r)^2 / 2; k3 = exp(r - p) - (r - p) - 1 with r - p cut to +-20 and the
// result to +-10. In fp32, as the differentiable form.
float EstimateKl(KlEstimator estimator, float log_prob, float ref_log_prob);

// A step counts as no further from the target than by this share of it.
inline constexpr double kMostKlError = 0.2;

struct KlControllerOptions {
  KlControl type = KlControl::kFixed;
  double kl_coef = 0.001;
  int64_t horizon = 10'000;  // samples
  double target_kl = 0.1;
};

// The coefficient of the KL penalty: fixed, or steered to a target (Ziegler et al. 2019). Its state
// is one number, which belongs into the checkpoint.
class KlController {
 public:
  explicit KlController(const KlControllerOptions& options)
      : options_(options), coefficient_(options.kl_coef) {}

  double coefficient() const { return coefficient_; }
  // After a step of `samples` responses with mean divergence `kl`.
  void Update(double kl, int64_t samples);

  Json State() const;
  // kInvalidData when the document is not a controller's. A fixed coefficient is the configured one
  // whatever the state says, and an adaptive one begins with it where the state is a fixed one's.
  Status Restore(const Json& state);

 private:
  KlControllerOptions options_;
  double coefficient_;
};

// rewards[t] -= coefficient * estimate on tokens of the policy. Returns the divergence: the mean
// over responses of their means over tokens; responses without tokens are not counted. Feed it to
// KlController::Update.
double ApplyKlPenalty(const PackedView& responses, KlEstimator estimator,
                      std::span<const float> old_log_probs, std::span<const float> ref_log_probs,
                      double coefficient, std::span<float> rewards);

}  // namespace keel::trainer::rl
