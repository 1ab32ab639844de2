#include "model/ops/attention_sinks.h"

#include <numeric>
#include <vector>

namespace keel::model {

namespace {

// [heads, 1], beside log sums.
at::Tensor Column(const parallel::Parameter& sinks, const at::Tensor& log_sums) {
  TORCH_CHECK(log_sums.dim() >= 2 && log_sums.size(-2) == sinks.rows(), "log sums of ",
              log_sums.sizes(), " for the sinks of ", sinks.rows(), " heads");
  return sinks.value.detach().to(at::kFloat).unsqueeze(1);
}

}  // namespace

at::Tensor AddSinks(const parallel::Parameter& sinks, const at::Tensor& log_sums, at::Tensor& out) {
  at::Tensor both = at::empty_strided(log_sums.sizes(), log_sums.strides(), log_sums.options());
  at::logaddexp_out(both, log_sums, Column(sinks, log_sums));
  out.mul_((log_sums - both).exp_().unsqueeze(-1));
  return both;
}

void AddSinkGradient(parallel::Parameter& sinks, const at::Tensor& log_sums, const at::Tensor& out,
                     const at::Tensor& dout) {
  const at::Tensor share = (Column(sinks, log_sums) - log_sums).exp_();
  const at::Tensor of_queries =
      (out.to(at::kFloat) * dout.to(at::kFloat)).sum(-1).mul_(share);  // [.., heads, L]
  std::vector<int64_t> others(static_cast<size_t>(log_sums.dim()));
  std::iota(others.begin(), others.end(), 0);
  others.erase(others.end() - 2);
  sinks.gradient.sub_(of_queries.sum(others));
}

}  // namespace keel::model
