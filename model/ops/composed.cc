#include "model/ops/composed.h"

#include <torch/csrc/autograd/autograd.h>

#include <optional>

#include "parallel/tensor/autograd_capture.h"

namespace keel::model {

namespace {

using parallel::Parameter;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::vector<at::Tensor> ValuesOf(const std::vector<Parameter*>& parameters) {
  std::vector<at::Tensor> values;
  for (const Parameter* p : parameters)
    values.push_back(p->value.detach().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true));
  return values;
}

using MaybeTensor = std::optional<at::Tensor>;

// A Function sees no tensors in a list.
struct ComposedFunction : torch::autograd::Function<ComposedFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& first,
                            const MaybeTensor& second, const MaybeTensor& third,
                            const Composition& f, const std::vector<Parameter*>& parameters) {
    variable_list inputs = {first};
    for (const MaybeTensor& more : {second, third})
      if (more) inputs.push_back(*more);
    context->save_for_backward(inputs);
    parallel::Capture(context, "f", f);
    parallel::Capture(context, "parameters", parameters);
    return f(inputs, ValuesOf(parameters));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& parameters = parallel::Captured<std::vector<Parameter*>>(context, "parameters");
    const at::AutoGradMode with_grad(true);
    variable_list inputs, all;
    for (const at::Tensor& saved : context->get_saved_variables())
      inputs.push_back(saved.detach().requires_grad_(true));
    std::vector<at::Tensor> values = ValuesOf(parameters);
    for (at::Tensor& value : values) value.requires_grad_(true);
    all = inputs;
    all.insert(all.end(), values.begin(), values.end());
    const at::Tensor out = parallel::Captured<Composition>(context, "f")(inputs, values);
    variable_list gradient = torch::autograd::grad({out}, all, gradients);
    for (size_t i = 0; i < parameters.size(); ++i)
      parameters[i]->gradient.add_(gradient[inputs.size() + i]);
    gradient.resize(inputs.size());
    gradient.resize(5);  // what is not there, f and parameters have none
    return gradient;
  }
};

}  // namespace

at::Tensor Composed(const Composition& f, const std::vector<at::Tensor>& inputs,
                    const std::vector<Parameter*>& parameters) {
  if (!at::GradMode::is_enabled()) return f(inputs, ValuesOf(parameters));
  TORCH_CHECK(!inputs.empty() && inputs.size() <= 3, "an operation of ", inputs.size(), " tensors");
  const auto input = [&](size_t i) {
    return i < inputs.size() ? MaybeTensor(inputs[i]) : std::nullopt;
  };
  return ComposedFunction::apply(inputs[0], input(1), input(2), f, parameters);
}

}  // namespace keel::model
