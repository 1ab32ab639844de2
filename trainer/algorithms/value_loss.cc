#include "trainer/algorithms/value_loss.h"

#include <numeric>

namespace keel::trainer::rl {

namespace {

// Of a sample, not of all: divided by one less than their number.
double Variance(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double one : values) squares += (one - mean) * (one - mean);
  return squares / (n - 1);
}

}  // namespace

ValueLossSums ValueLossSums::Of(const std::array<double, 4>& v) { return {v[0], v[1], v[2], v[3]}; }

std::map<std::string, double> ValueLossSums::Metrics() const {
  const double n = tokens > 0 ? tokens : 1;
  return {{"critic/vf_loss", vf_loss},
          {"critic/vf_clipfrac", clipped / n},
          {"critic/vpred_mean", values / n}};
}

ValueLossResult ValueLoss(const ValueLossInputs& inputs, const ValueLossOptions& options,
                          const LossDenominators& denominators) {
  ValueLossInputs in = inputs;
  for (at::Tensor* tensor : {&in.values, &in.old_values, &in.returns})
    *tensor = in.layout.Counted(*tensor);
  const at::Tensor bounded =
      at::maximum(at::minimum(in.values, in.old_values + options.cliprange_value),
                  in.old_values - options.cliprange_value);
  const at::Tensor free_error = (in.values - in.returns).square();
  const at::Tensor bounded_error = (bounded - in.returns).square();
  const at::Tensor loss =
      0.5 * WeightedSum(at::maximum(free_error, bounded_error),
                        LossWeights(in.layout, options.aggregation, denominators));

  const at::NoGradGuard no_grad;
  const at::Tensor& mask = in.layout.mask;
  return {loss, ValueLossSums::Totals(
                    at::stack({loss.detach().to(at::kDouble),
                               bounded_error.gt(free_error).logical_and(mask).sum().to(at::kDouble),
                               WeightedSum(in.values.detach(), mask.to(at::kFloat)).to(at::kDouble),
                               mask.sum().to(at::kDouble)}))};
}

std::optional<double> ExplainedVariance(const std::vector<double>& values,
                                        const std::vector<double>& returns) {
  if (returns.size() < 2) return std::nullopt;
  std::vector<double> missed = returns;
  for (size_t i = 0; i < missed.size(); ++i) missed[i] -= values[i];
  return 1 - Variance(missed) / (Variance(returns) + 1e-5);
}

}  // namespace keel::trainer::rl
