#include "model/value_head.h"

#include <torch/csrc/autograd/custom_function.h>

namespace keel::model {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct ValueFunction : Function<ValueFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const at::Tensor& weight_gradient) {
    context->save_for_backward({hidden, weight});
    context->saved_data["weight_gradient"] = weight_gradient;
    return at::mv(hidden.to(at::kFloat), weight.to(at::kFloat).view({-1}));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor dv = gradients[0].to(at::kFloat).contiguous();  // [T]
    at::Tensor weight_gradient = context->saved_data["weight_gradient"].toTensor();
    weight_gradient.add_(at::mm(dv.unsqueeze(0), saved[0].to(at::kFloat)));
    return {at::outer(dv, saved[1].to(at::kFloat).view({-1})).to(saved[0].scalar_type()), {}, {}};
  }
};

}  // namespace

at::Tensor ValueHead(const at::Tensor& hidden, parallel::Parameter& weight) {
  return ValueFunction::apply(hidden, weight.value, weight.gradient);
}

}  // namespace keel::model
