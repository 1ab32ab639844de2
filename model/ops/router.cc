#include "model/ops/router.h"

#include <limits>
#include <tuple>

namespace keel::model {

namespace {

// The scores by which experts are chosen, without those of groups that the token does not take.
at::Tensor WithinBestGroups(const at::Tensor& scores, const MoeSpec& spec) {
  if (spec.top_groups == spec.groups) return scores;
  const int64_t tokens = scores.size(0);
  const at::Tensor grouped = scores.view({tokens, spec.groups, spec.experts / spec.groups});
  const at::Tensor highest = std::get<0>(at::topk(grouped, spec.group_by_best ? 1 : 2, -1));
  const at::Tensor of_group =
      spec.group_by_best ? highest.select(2, 0) : highest.select(2, 0) + highest.select(2, 1);
  const at::Tensor best = std::get<1>(at::topk(of_group, spec.top_groups, -1));
  const at::Tensor left =
      at::ones({tokens, spec.groups}, scores.options().dtype(at::kBool)).scatter_(1, best, false);
  return grouped.masked_fill(left.unsqueeze(2), -std::numeric_limits<float>::infinity())
      .view({tokens, spec.experts});
}

}  // namespace

Routing Route(const at::Tensor& logits, const at::Tensor& bias, const MoeSpec& spec) {
  Routing routing;
  const at::Tensor fp32 = logits.to(at::kFloat);
  routing.probs = at::softmax(fp32, -1);
  const at::Tensor scores = spec.score == RouterScore::kSigmoid ? RowSigmoid(fp32) : routing.probs;
  routing.biased = bias.defined() || spec.top_groups < spec.groups;
  if (routing.biased) {
    const at::Tensor by = bias.defined() ? scores.detach() + bias : scores.detach();
    routing.experts = std::get<1>(at::topk(WithinBestGroups(by, spec), spec.top_k, -1));
    routing.weights = scores.gather(1, routing.experts);
  } else {
    std::tie(routing.weights, routing.experts) = at::topk(scores, spec.top_k, -1);
  }
  if (spec.renormalize) {
    // Column by column, in one order whatever the number of rows.
    at::Tensor sum = routing.weights.narrow(1, 0, 1);
    for (int64_t j = 1; j < spec.top_k; ++j) sum = sum + routing.weights.narrow(1, j, 1);
    routing.weights = routing.weights / sum;
  }
  if (spec.scale != 1) routing.weights = routing.weights * spec.scale;
  return routing;
}

at::Tensor RowSigmoid(const at::Tensor& x) {
  const at::Tensor logits = x.to(at::kFloat).unsqueeze(-1);
  return at::softmax(at::cat({logits, at::zeros_like(logits)}, -1), -1)
      .select(-1, 0)
      .to(x.scalar_type());
}

}  // namespace keel::model
