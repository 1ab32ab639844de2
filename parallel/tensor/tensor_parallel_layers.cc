#include "parallel/tensor/tensor_parallel_layers.h"

#include <optional>

#include "parallel/tensor/adapted_linear.h"
#include "parallel/tensor/autograd_capture.h"
#include "parallel/tensor/host_kernels.h"
#include "parallel/tensor/matrix_product.h"
#include "parallel/tensor/regions.h"
#include "parallel/tensor/row_product.h"
#include "parallel/tensor/row_sum.h"

namespace keel::parallel {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// The gradients are passed as tensors beside the weights; they take no part in differentiation.
// Where one is missing nothing learns there, and none is made.
struct LinearFunction : Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& weight_gradient,
                            const std::optional<at::Tensor>& bias,
                            const std::optional<at::Tensor>& bias_gradient, Arithmetic arithmetic) {
    context->save_for_backward({weight_gradient ? x : at::Tensor(), weight});
    if (weight_gradient) context->saved_data["weight_gradient"] = *weight_gradient;
    if (bias_gradient) context->saved_data["bias_gradient"] = *bias_gradient;
    return Multiplied(x, weight, bias ? &*bias : nullptr, arithmetic);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx;
    if (context->needs_input_grad(0)) dx = Product(dy, weight);
    if (auto it = context->saved_data.find("weight_gradient"); it != context->saved_data.end()) {
      at::Tensor weight_gradient = it->second.toTensor();
      AccumulateWeightGradient(weight_gradient, dy, x);
    }
    if (auto it = context->saved_data.find("bias_gradient"); it != context->saved_data.end()) {
      at::Tensor bias_gradient = it->second.toTensor();
      bias_gradient.add_(at::sum(dy, {0}, false, at::kFloat));
    }
    return {dx, {}, {}, {}, {}, {}};
  }
};

// Keeps x and the weight as they are; what is computed is in fp32.
struct Fp32LinearFunction : Function<Fp32LinearFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& weight_gradient,
                            Arithmetic arithmetic) {
    context->save_for_backward({x, weight});
    if (weight_gradient) context->saved_data["weight_gradient"] = *weight_gradient;
    return Multiplied(x.to(at::kFloat), weight.to(at::kFloat), nullptr, arithmetic);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx;
    if (context->needs_input_grad(0))
      dx = Product(dy, saved[1].to(at::kFloat)).to(saved[0].scalar_type());
    if (auto it = context->saved_data.find("weight_gradient"); it != context->saved_data.end()) {
      at::Tensor weight_gradient = it->second.toTensor();
      AccumulateWeightGradient(weight_gradient, dy, saved[0].to(at::kFloat));
    }
    return {dx, {}, {}, {}};
  }
};

struct EmbeddingFunction : Function<EmbeddingFunction> {
  // ids [T]; those outside [first, first + rows) give zero rows.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& ids,
                            const at::Tensor& weight, const at::Tensor& weight_gradient,
                            int64_t first) {
    const at::Tensor local = ids - first;
    const at::Tensor outside = local.lt(0).logical_or_(local.ge(weight.size(0)));
    const at::Tensor rows = local.masked_fill(outside, 0);
    at::Tensor out = weight.index_select(0, rows);
    out.masked_fill_(outside.unsqueeze(1), 0);
    context->save_for_backward({rows, outside});
    context->saved_data["weight_gradient"] = weight_gradient;
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    at::Tensor dy = gradients[0].to(at::kFloat);
    dy = dy.masked_fill(saved[1].unsqueeze(1), 0);
    at::Tensor weight_gradient = context->saved_data["weight_gradient"].toTensor();
    AddLookupGradient(weight_gradient, saved[0], dy);
    return {{}, {}, {}, {}};
  }
};

struct AddBiasFunction : Function<AddBiasFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& bias,
                            const at::Tensor& bias_gradient) {
    context->saved_data["bias_gradient"] = bias_gradient;
    return x + bias;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    at::Tensor bias_gradient = context->saved_data["bias_gradient"].toTensor();
    bias_gradient.add_(at::sum(gradients[0], {0}, false, at::kFloat));
    return {gradients[0], {}, {}};
  }
};

std::optional<at::Tensor> GradientOf(const Parameter& parameter) {
  return parameter.trained() ? std::optional(parameter.gradient) : std::nullopt;
}

}  // namespace

void AccumulateWeightGradient(at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& x) {
  AddProduct(gradient, dy.t(), x);
}

at::Tensor Linear(const at::Tensor& x, Parameter& weight, Parameter* bias, Arithmetic arithmetic) {
  std::optional<at::Tensor> value, gradient;
  if (bias != nullptr) {
    value = bias->value;
    gradient = GradientOf(*bias);
  }
  if (weight.adapter && weight.adapter->on)
    return AdaptedLinear(x, weight, value ? &*value : nullptr, arithmetic);
  return LinearFunction::apply(x, weight.value, GradientOf(weight), value, gradient, arithmetic);
}

void LinearInto(const at::Tensor& x, const Parameter& weight, const Parameter* bias,
                at::Tensor& out, Arithmetic arithmetic) {
  LinearInto(x, weight.value, bias != nullptr ? &bias->value : nullptr, out, arithmetic);
  if (weight.adapter && weight.adapter->on) AddAdapted(x, *weight.adapter, out, arithmetic);
}

at::Tensor LinearInFp32(const at::Tensor& x, Parameter& weight, Arithmetic arithmetic) {
  return Fp32LinearFunction::apply(x, weight.value, GradientOf(weight), arithmetic);
}

at::Tensor EnterColumns(const at::Tensor& x, const TensorParallel& tp) {
  return tp.sequence_parallel ? GatherFromSequenceParallel(x, *tp.group)
                              : CopyToTensorParallel(x, *tp.group);
}

at::Tensor LeaveRows(const at::Tensor& x, const TensorParallel& tp) {
  const bool fixed_order = tp.arithmetic == Arithmetic::kBatchInvariant;
  return tp.sequence_parallel ? ReduceScatterToSequenceParallel(x, *tp.group, fixed_order)
                              : ReduceFromTensorParallel(x, *tp.group, fixed_order);
}

at::Tensor ColumnParallelLinear::Forward(const at::Tensor& x) const {
  return Linear(EnterColumns(x, tp_), *weight_, bias_, tp_.arithmetic);
}

at::Tensor RowParallelLinear::Forward(const at::Tensor& x) const {
  const at::Tensor y = LeaveRows(Linear(x, *weight_, nullptr, tp_.arithmetic), tp_);
  return bias_ == nullptr ? y : AddBiasFunction::apply(y, bias_->value, bias_->gradient);
}

at::Tensor VocabParallelEmbedding::Forward(const at::Tensor& ids) const {
  const int64_t first = tp_.group->rank() * weight_->rows();
  return LeaveRows(EmbeddingFunction::apply(ids, weight_->value, weight_->gradient, first), tp_);
}

}  // namespace keel::parallel
