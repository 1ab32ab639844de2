#include "model/ops/recompute.h"

#include <torch/csrc/autograd/autograd.h>

#include <optional>

#include "parallel/tensor/autograd_capture.h"

namespace keel::model {

namespace {

using Block = std::function<Recomputed(const Recomputed&)>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

variable_list ListOf(const Recomputed& values) {
  return values.beside.defined() ? variable_list{values.x, values.beside} : variable_list{values.x};
}

Recomputed Of(const variable_list& list) {
  return {list[0], list.size() > 1 ? list[1] : at::Tensor()};
}

struct RecomputeFunction : torch::autograd::Function<RecomputeFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x,
                               const std::optional<at::Tensor>& beside, const Block& block) {
    const Recomputed in = {x, beside.value_or(at::Tensor())};
    context->save_for_backward(ListOf(in));
    parallel::Capture(context, "block", block);
    const at::NoGradGuard no_grad;
    return ListOf(block(in));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::AutoGradMode with_grad(true);
    variable_list in;
    for (const at::Tensor& saved : context->get_saved_variables())
      in.push_back(saved.detach().requires_grad_(true));
    const variable_list out = ListOf(parallel::Captured<Block>(context, "block")(Of(in)));
    // Only with respect to `in`: parameters take their gradients inside.
    variable_list gradient = torch::autograd::grad(out, in, gradients);
    gradient.resize(3);  // x, what is beside it, and the block
    return gradient;
  }
};

}  // namespace

Recomputed Recompute(const Block& f, const Recomputed& in) {
  const std::optional<at::Tensor> beside =
      in.beside.defined() ? std::optional(in.beside) : std::nullopt;
  return Of(RecomputeFunction::apply(in.x, beside, f));
}

}  // namespace keel::model
