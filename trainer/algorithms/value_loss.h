// The critic's loss of a micro-batch: half the squared error of its values, clipped around the old
// ones (Schulman et al. 2017; verl's compute_value_loss). Pure; called from the training thread.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainer/algorithms/loss_aggregation.h"
#include "trainer/algorithms/loss_totals.h"

namespace keel::trainer::rl {

struct ValueLossOptions {
  double cliprange_value = 0.5;
  LossAggregation aggregation = LossAggregation::kTokenMean;
};

// All [T] fp32.
struct ValueLossInputs {
  TokenLayout layout;
  at::Tensor values;      // of the current weights; carries the gradient
  at::Tensor old_values;  // at the start of the step
  at::Tensor returns;
};

struct ValueLossSums {
  double vf_loss = 0;
  double clipped = 0;  // tokens
  double values = 0;   // sum
  double tokens = 0;

  // The members above, in their order.
  using Totals = LossTotals<4>;
  static ValueLossSums Of(const std::array<double, 4>& values);
  // critic/{vf_loss,vf_clipfrac,vpred_mean}
  std::map<std::string, double> Metrics() const;
};

struct ValueLossResult {
  at::Tensor loss;  // fp32 scalar
  ValueLossSums::Totals totals;
  ValueLossSums sums() const { return ValueLossSums::Of(totals.Read()); }
};

ValueLossResult ValueLoss(const ValueLossInputs& inputs, const ValueLossOptions& options,
                          const LossDenominators& denominators);

// critic/vf_explained_var, as verl's compute_data_metrics has it: 1 where the critic knew the
// returns, 0 where it knew no more than their mean. Of two tokens or more; none of fewer.
std::optional<double> ExplainedVariance(const std::vector<double>& values,
                                        const std::vector<double>& returns);

}  // namespace keel::trainer::rl
