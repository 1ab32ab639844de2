#include "parallel/tensor/adapted_linear.h"

#include "parallel/tensor/autograd_capture.h"
#include "parallel/tensor/matrix_product.h"
#include "parallel/tensor/row_product.h"
#include "parallel/tensor/tensor_parallel_layers.h"

namespace keel::parallel {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Of h [T, tensors * rank] the part of a run's tensor, and of B [rows, rank] the run's rows.
at::Tensor Reduced(const at::Tensor& h, const Adapter& adapter, const Adapter::Run& run) {
  return h.narrow(1, run.tensor * adapter.rank, adapter.rank);
}
at::Tensor RowsOfB(const at::Tensor& b, const Adapter::Run& run) {
  return b.narrow(0, run.b_row, run.rows);
}

// What one product of rows is: training's, or generation's.
at::Tensor RowsTimes(const at::Tensor& x, const at::Tensor& w, bool generates,
                     Arithmetic arithmetic) {
  if (!generates) return Multiplied(x, w, nullptr, arithmetic);
  at::Tensor out = at::empty({x.size(0), w.size(0)}, x.options());
  LinearInto(x.contiguous(), w, nullptr, out, arithmetic);
  return out;
}

// out += scale x A^T B^T; returns x A^T.
at::Tensor AddTo(at::Tensor& out, const at::Tensor& x, const Adapter& adapter, const at::Tensor& a,
                 const at::Tensor& b, bool generates, Arithmetic arithmetic) {
  const at::Tensor h = RowsTimes(x, a, generates, arithmetic);
  for (const Adapter::Run& run : adapter.runs) {
    // Each operation rounds by itself, so that an element has the same bits wherever it stands.
    at::Tensor z = RowsTimes(Reduced(h, adapter, run), RowsOfB(b, run), generates, arithmetic);
    out.narrow(1, run.weight_row, run.rows).add_(z.mul_(adapter.scale));
  }
  return h;
}

struct AdaptedLinearFunction : Function<AdaptedLinearFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const at::Tensor& a,
                            const at::Tensor& b, const Adapter* adapter, Arithmetic arithmetic) {
    at::Tensor out = Multiplied(x, weight, bias ? &*bias : nullptr, arithmetic);
    const at::Tensor h = AddTo(out, x, *adapter, a, b, false, arithmetic);
    context->save_for_backward({x, weight, a, b, h});
    Capture(context, "adapter", adapter);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& a = saved[2];
    const at::Tensor& b = saved[3];
    const at::Tensor& h = saved[4];
    const Adapter& adapter = *Captured<const Adapter*>(context, "adapter");
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dh = at::zeros_like(h);
    for (const Adapter::Run& run : adapter.runs) {
      const at::Tensor dz = dy.narrow(1, run.weight_row, run.rows) * adapter.scale;
      at::Tensor of_b = RowsOfB(adapter.b->gradient, run);
      AccumulateWeightGradient(of_b, dz, Reduced(h, adapter, run).contiguous());
      Reduced(dh, adapter, run).add_(Product(dz, RowsOfB(b, run)));
    }
    AccumulateWeightGradient(adapter.a->gradient, dh, x);
    at::Tensor dx;
    if (context->needs_input_grad(0)) dx = Product(dy, saved[1]).add_(Product(dh, a));
    return {dx, {}, {}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor AdaptedLinear(const at::Tensor& x, const Parameter& weight, const at::Tensor* bias,
                         Arithmetic arithmetic) {
  const Adapter& adapter = *weight.adapter;
  return AdaptedLinearFunction::apply(x, weight.value,
                                      bias != nullptr ? std::optional(*bias) : std::nullopt,
                                      adapter.a->value, adapter.b->value, &adapter, arithmetic);
}

void AddAdapted(const at::Tensor& x, const Adapter& adapter, at::Tensor& out,
                Arithmetic arithmetic) {
  AddTo(out, x, adapter, adapter.a->value, adapter.b->value, true, arithmetic);
}

}  // namespace keel::parallel
