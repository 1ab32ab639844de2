#include "model/recompute.h"

#include <torch/csrc/autograd/autograd.h>

#include "parallel/autograd_capture.h"

namespace keel::model {

namespace {

using Block = std::function<at::Tensor(const at::Tensor&)>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RecomputeFunction : torch::autograd::Function<RecomputeFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Block& block) {
    context->save_for_backward({x});
    parallel::Capture(context, "block", block);
    const at::NoGradGuard no_grad;
    return block(x);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::AutoGradMode with_grad(true);
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_(true);
    const at::Tensor y = parallel::Captured<Block>(context, "block")(x);
    // Only with respect to x: parameters take their gradients inside.
    const variable_list dx = torch::autograd::grad({y}, {x}, {gradients[0]});
    return {dx[0], {}};
  }
};

}  // namespace

at::Tensor Recompute(const std::function<at::Tensor(const at::Tensor&)>& f, const at::Tensor& x) {
  return RecomputeFunction::apply(x, f);
}

}  // namespace keel::model
