#include "model/ops/router.h"

#include <tuple>

namespace keel::model {

Routing Route(const at::Tensor& logits, const MoeSpec& spec) {
  Routing routing;
  routing.probs = at::softmax(logits.to(at::kFloat), -1);
  std::tie(routing.weights, routing.experts) = at::topk(routing.probs, spec.top_k, -1);
  if (spec.renormalize) {
    // Column by column, in one order whatever the number of rows.
    at::Tensor sum = routing.weights.narrow(1, 0, 1);
    for (int64_t j = 1; j < spec.top_k; ++j) sum = sum + routing.weights.narrow(1, j, 1);
    routing.weights = routing.weights / sum;
  }
  return routing;
}

at::Tensor RowSigmoid(const at::Tensor& x) {
  const at::Tensor logits = x.to(at::kFloat);
  return at::softmax(at::cat({logits, at::zeros_like(logits)}, 1), 1)
      .narrow(1, 0, 1)
      .to(x.scalar_type());
}

}  // namespace keel::model
