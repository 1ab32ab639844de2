#include "trainer/algorithms/rejection.h"

#include <cmath>

namespace keel::trainer::rl {

namespace {

constexpr double kLogBound = 20;  // of log ratios before exp

at::Tensor Estimate(KlEstimator estimator, const at::Tensor& log_ratio) {
  const at::Tensor safe = log_ratio.clamp(-kLogBound, kLogBound);
  if (estimator == KlEstimator::kK1) return -safe;
  return estimator == KlEstimator::kK2 ? 0.5 * safe.square() : safe.exp() - 1 - safe;
}

// What the rule looks at of each token: its own value, or its sequence's.
at::Tensor Statistic(const TokenLayout& layout, RejectionScope scope, const at::Tensor& values) {
  switch (scope) {
    case RejectionScope::kToken:
      return values;
    case RejectionScope::kSum:
      return layout.Spread(layout.SequenceSums(values));
    case RejectionScope::kMean:
      return layout.Spread(layout.SequenceSums(values) / layout.Lengths().clamp_min(1));
    case RejectionScope::kMax:
      return layout.Spread(layout.SequenceMaxima(values));
  }
  return values;
}

}  // namespace

at::Tensor KeptTokens(const TokenLayout& layout, const at::Tensor& log_ratio,
                      std::span<const RejectionRule> rules) {
  const at::NoGradGuard no_grad;
  at::Tensor kept = layout.mask;
  const at::Tensor ratio = log_ratio.to(at::kDouble);
  for (const RejectionRule& rule : rules) {
    const RejectionTraits traits = TraitsOf(rule.test);
    const bool k1 = traits.estimator == KlEstimator::kK1;
    const at::Tensor found = Statistic(layout, traits.scope, Estimate(traits.estimator, ratio));
    kept = kept.logical_and(found.le(k1 ? std::log(rule.upper) : rule.upper));
    if (k1) kept = kept.logical_and(found.ge(std::log(rule.lower)));
  }
  return kept;
}

}  // namespace keel::trainer::rl
