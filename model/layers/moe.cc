#include "model/layers/moe.h"

#include <torch/csrc/autograd/custom_function.h>

#include "model/ops/clamped_unit.h"
#include "model/ops/decode_ops.h"
#include "model/ops/expert_products.h"
#include "model/ops/expert_rows.h"
#include "model/ops/ops.h"
#include "model/ops/router.h"
#include "parallel/tensor/autograd_capture.h"
#include "parallel/tensor/row_product.h"

namespace keel::model {

namespace {

using parallel::Arithmetic;
using parallel::Capture;
using parallel::Captured;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// A parameter in which all experts' weights stand one after another, [experts, rows, columns].
at::Tensor ByExpert(const at::Tensor& all, const MoeSpec& spec) {
  return all.view({spec.experts, all.size(0) / spec.experts, all.size(1)});
}

bool Clamped(const MoeFeedForward& moe) { return moe.spec.kind == ExpertKind::kClamped; }

// [experts, in, out], out of a parameter that has each expert's matrix as files have it.
at::Tensor ByInput(const parallel::Parameter& p, const MoeFeedForward& moe) {
  const at::Tensor all = ByExpert(p.value, moe.spec);
  return Clamped(moe) ? all : all.transpose(1, 2);
}

void AddBias(at::Tensor& rows, const parallel::Parameter& bias, const ExpertRows& sorted) {
  rows.add_(bias.value.view({-1, rows.size(1)}).index_select(0, sorted.Experts()));
}

ClampedGate GateOf(const MoeFeedForward& moe) { return {moe.spec.gate_alpha, moe.spec.gate_limit}; }

at::Tensor ActivatedOf(const at::Tensor& gate_up, const MoeFeedForward& moe) {
  if (Clamped(moe)) return ClampedUnit(gate_up, GateOf(moe));
  at::Tensor activated = at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
  GatedUnitInto(gate_up, moe.activation, activated);
  return activated;
}

ExpertRows Sorted(const MoeFeedForward& moe, const at::Tensor& chosen) {
  return moe.SortsInPlace() ? SortByExpertInPlace(chosen, moe.spec.experts)
                            : SortByExpert(chosen, moe.spec.experts);
}

// The feed-forward of x [T, hidden] once its experts are chosen. `gate_up` [rows, 2 F] takes the
// rows before their activation, which the backward begins with.
at::Tensor RunExperts(const MoeFeedForward& moe, const at::Tensor& x, const ExpertRows& sorted,
                      const at::Tensor& weights, Arithmetic arithmetic, at::Tensor* gate_up) {
  const auto times = [&](const at::Tensor& rows, const parallel::Parameter& w) {
    return ExpertProduct(sorted, rows, ByInput(w, moe), arithmetic);
  };
  *gate_up = times(sorted.Spread(x), *moe.gate_up);
  if (moe.gate_up_bias != nullptr) AddBias(*gate_up, *moe.gate_up_bias, sorted);
  at::Tensor out = times(ActivatedOf(*gate_up, moe), *moe.down);
  if (moe.adds_down_bias) AddBias(out, *moe.down_bias, sorted);
  return sorted.Gather(out, weights);
}

// RunExperts, differentiable by x and by the routers' weights.
struct ExpertsFunction : Function<ExpertsFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weights, const MoeFeedForward& moe,
                            const ExpertRows& sorted, Arithmetic arithmetic) {
    at::Tensor gate_up;
    at::Tensor out = RunExperts(moe, x, sorted, weights, arithmetic, &gate_up);
    context->save_for_backward({x, weights, gate_up});
    Capture(context, "moe", moe);
    Capture(context, "sorted", sorted);
    return out;
  }

  // A row's result is w * (activated down^T + bias). With g = dy down, the row's gradient by w is
  // g . activated + dy . bias, and by activated w * g: the result itself is not needed.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& gate_up = saved[2];
    const at::ScalarType dtype = gate_up.scalar_type();
    const auto& moe = Captured<MoeFeedForward>(context, "moe");
    const auto& sorted = Captured<ExpertRows>(context, "sorted");
    const auto times = [&](const at::Tensor& rows, const parallel::Parameter& w) {
      return ExpertProduct(sorted, rows, ByInput(w, moe).transpose(1, 2), Arithmetic::kTraining);
    };
    const auto add_gradient = [&](const parallel::Parameter& p, const at::Tensor& dy,
                                  const at::Tensor& x) {
      if (!p.trained()) return;
      at::Tensor gradient = ByExpert(p.gradient, moe.spec);
      AddExpertGradient(gradient, sorted, Clamped(moe) ? x : dy, Clamped(moe) ? dy : x);
    };
    const auto add_bias_gradient = [&](const parallel::Parameter& p, const at::Tensor& dy) {
      if (!p.trained()) return;
      at::Tensor gradient = p.gradient.view({moe.spec.experts, -1});
      AddExpertBiasGradient(gradient, sorted, dy);
    };
    const at::Tensor w = saved[1].reshape({-1}).index_select(0, sorted.slots).view({-1, 1});
    const at::Tensor dy = sorted.Spread(gradients[0].contiguous());
    const at::Tensor activated = ActivatedOf(gate_up, moe);
    const at::Tensor g = times(dy, *moe.down).to(at::kFloat);
    at::Tensor row_dweights = (g * activated).sum(1);
    const at::Tensor weighted = (dy * w).to(dtype);
    add_gradient(*moe.down, weighted, activated);
    if (moe.adds_down_bias) {
      add_bias_gradient(*moe.down_bias, weighted);
      at::Tensor biases = at::zeros(dy.sizes(), dy.options().dtype(at::kFloat));
      AddBias(biases, *moe.down_bias, sorted);
      row_dweights = row_dweights + (biases * dy).sum(1);
    }
    const at::Tensor dactivated = (g * w).to(dtype);
    const at::Tensor dgate_up = Clamped(moe)
                                    ? ClampedUnitGradient(dactivated, gate_up, GateOf(moe))
                                    : GatedUnitGradient(dactivated, gate_up, moe.activation);
    if (moe.gate_up_bias != nullptr) add_bias_gradient(*moe.gate_up_bias, dgate_up);
    add_gradient(*moe.gate_up, dgate_up, sorted.Spread(saved[0]));
    const at::Tensor dweights =
        row_dweights.index_select(0, sorted.rows.reshape({-1})).view(saved[1].sizes());
    return {sorted.Gather(times(dgate_up, *moe.gate_up)), dweights, {}, {}, {}};
  }
};

at::Tensor BiasOf(const MoeFeedForward& moe) {
  return moe.choice_bias == nullptr ? at::Tensor() : moe.choice_bias->value;
}

}  // namespace

at::Tensor MoeFeedForward::Forward(const parallel::TensorParallel& tp, const at::Tensor& x,
                                   const at::Tensor& counted, RouterLoad& load) const {
  const at::Tensor whole = parallel::EnterColumns(x, tp);
  const at::Tensor logits = spec.fp32_router
                                ? parallel::LinearInFp32(whole, *router, tp.arithmetic)
                                : parallel::Linear(whole, *router, router_bias, tp.arithmetic);
  const Routing routing = Route(logits, BiasOf(*this), spec);
  load = load.With(routing, counted, tp.group->rank() == 0);
  const ExpertRows sorted = Sorted(*this, routing.experts);
  at::Tensor out = ExpertsFunction::apply(whole, routing.weights, *this, sorted, tp.arithmetic);
  if (shared.down != nullptr) {
    const auto product = [&](const at::Tensor& a, parallel::Parameter* weight) {
      return parallel::Linear(a, *weight, nullptr, tp.arithmetic);
    };
    const at::Tensor unit = GatedUnit(product(whole, shared.gate_up), shared.activation);
    const at::Tensor beside = product(unit, shared.down);
    out =
        out + (shared_gate == nullptr ? beside : beside * RowSigmoid(product(whole, shared_gate)));
  }
  return parallel::LeaveRows(out, tp);
}

bool MoeFeedForward::SortsInPlace() const {
  return HasGroupedProduct(gate_up->value, spec.experts) &&
         HasGroupedProduct(down->value, spec.experts);
}

void MoeFeedForward::Into(const at::Tensor& x, at::Tensor& out, Arithmetic arithmetic) const {
  const at::ScalarType dtype = spec.fp32_router ? at::kFloat : x.scalar_type();
  at::Tensor logits = at::empty({x.size(0), spec.experts}, x.options().dtype(dtype));
  parallel::LinearInto(x.to(dtype), router->value.to(dtype),
                       router_bias != nullptr ? &router_bias->value : nullptr, logits, arithmetic);
  const Routing routing = Route(logits, BiasOf(*this), spec);
  at::Tensor kept;  // by training alone
  out.copy_(
      RunExperts(*this, x, Sorted(*this, routing.experts), routing.weights, arithmetic, &kept));
  if (shared.down == nullptr) return;
  const auto made = [&](const at::Tensor& a, const parallel::Parameter& weight) {
    at::Tensor to = at::empty({a.size(0), weight.rows()}, a.options());
    parallel::LinearInto(a, weight, nullptr, to, arithmetic);
    return to;
  };
  at::Tensor unit = at::empty({x.size(0), shared.down->row_size()}, x.options());
  GatedUnitInto(made(x, *shared.gate_up), shared.activation, unit);
  at::Tensor beside = made(unit, *shared.down);
  if (shared_gate != nullptr) beside.mul_(RowSigmoid(made(x, *shared_gate)));
  out.add_(beside);
}

}  // namespace keel::model
