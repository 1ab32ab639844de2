#include "model/recompute.h"

#include <torch/csrc/autograd/autograd.h>

#include "parallel/autograd_capture.h"

namespace keel::model {

namespace {

using Block = std::function<TensorList(const TensorList&)>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RecomputeFunction : torch::autograd::Function<RecomputeFunction> {
  static variable_list forward(AutogradContext* context, const variable_list& x,
                               const Block& block) {
    context->save_for_backward(x);
    parallel::Capture(context, "block", block);
    const at::NoGradGuard no_grad;
    return block(x);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::AutoGradMode with_grad(true);
    variable_list x;
    for (const at::Tensor& saved : context->get_saved_variables())
      x.push_back(saved.detach().requires_grad_(true));
    const variable_list y = parallel::Captured<Block>(context, "block")(x);
    // Only with respect to x: parameters take their gradients inside.
    variable_list dx = torch::autograd::grad(y, x, gradients, /*retain_graph=*/false,
                                             /*create_graph=*/false, /*allow_unused=*/true);
    dx.emplace_back();  // the block's
    return dx;
  }
};

}  // namespace

TensorList Recompute(const Block& f, const TensorList& x) { return RecomputeFunction::apply(x, f); }

}  // namespace keel::model
