#include "model/layers/moe.h"

#include <torch/csrc/autograd/custom_function.h>

#include <functional>

#include "model/ops/decode_ops.h"
#include "model/ops/expert_rows.h"
#include "model/ops/ops.h"
#include "model/ops/router.h"
#include "parallel/tensor/autograd_capture.h"
#include "parallel/tensor/matrix_product.h"

namespace keel::model {

namespace {

using parallel::Capture;
using parallel::Captured;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// out = x w^T.
using RowProduct = std::function<void(const at::Tensor& x, const at::Tensor& w, at::Tensor& out)>;

// Part `expert` of a tensor in which all experts' stand one after another.
at::Tensor OfExpert(const at::Tensor& all, int64_t expert, int64_t experts) {
  const int64_t rows = all.size(0) / experts;
  return all.narrow(0, expert * rows, rows);
}

// Calls f(expert, first row, rows) for the experts that have some.
template <typename F>
void ForEachExpert(const ExpertRows& sorted, F f) {
  for (size_t e = 0; e + 1 < sorted.begins.size(); ++e) {
    const int64_t begin = sorted.begins[e];
    const int64_t rows = sorted.begins[e + 1] - begin;
    if (rows > 0) f(static_cast<int64_t>(e), begin, rows);
  }
}

// The feed-forward of x [T, hidden] once its experts are chosen. `gate_up` [rows, 2 F] takes the
// rows before their activation, which the backward begins with.
at::Tensor RunExperts(const MoeFeedForward& moe, const at::Tensor& x, const ExpertRows& sorted,
                      const at::Tensor& weights, const RowProduct& product, at::Tensor* gate_up) {
  const int64_t experts = moe.spec.experts;
  const int64_t width = moe.down->row_size();
  *gate_up = at::empty({sorted.count(), 2 * width}, x.options());
  at::Tensor out = at::empty({sorted.count(), x.size(1)}, x.options());
  const at::Tensor rows_of_x = sorted.Spread(x);
  ForEachExpert(sorted, [&](int64_t e, int64_t begin, int64_t rows) {
    at::Tensor mine = gate_up->narrow(0, begin, rows);
    product(rows_of_x.narrow(0, begin, rows), OfExpert(moe.gate_up->value, e, experts), mine);
    at::Tensor activated = at::empty({rows, width}, x.options());
    GatedUnitInto(mine, moe.activation, activated);
    at::Tensor result = out.narrow(0, begin, rows);
    product(activated, OfExpert(moe.down->value, e, experts), result);
  });
  return sorted.Gather(out, weights);
}

// RunExperts, differentiable by x and by the routers' weights.
struct ExpertsFunction : Function<ExpertsFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weights, const MoeFeedForward& moe,
                            const ExpertRows& sorted) {
    at::Tensor gate_up;
    at::Tensor out = RunExperts(
        moe, x, sorted, weights,
        [](const at::Tensor& a, const at::Tensor& w, at::Tensor& to) {
          parallel::ProductInto(to, a, w.t());
        },
        &gate_up);
    context->save_for_backward({x, weights, gate_up});
    Capture(context, "moe", moe);
    Capture(context, "sorted", sorted);
    return out;
  }

  // A row's result is w * (activated down^T). With g = dy down, the row's gradient by w is
  // g . activated, and by activated w * g: the result itself is not needed.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& gate_up = saved[2];
    const auto& moe = Captured<MoeFeedForward>(context, "moe");
    const auto& sorted = Captured<ExpertRows>(context, "sorted");
    const int64_t experts = moe.spec.experts;
    const int64_t width = gate_up.size(1) / 2;
    const at::Tensor rows_of_x = sorted.Spread(x);
    const at::Tensor dy = sorted.Spread(gradients[0].contiguous());
    const at::Tensor row_weights =
        saved[1].reshape({-1}).index_select(0, sorted.slots).view({-1, 1});
    at::Tensor dx = at::empty_like(rows_of_x);
    at::Tensor row_dweights = at::empty({sorted.count()}, row_weights.options());
    ForEachExpert(sorted, [&](int64_t e, int64_t begin, int64_t rows) {
      const auto mine = [&](const at::Tensor& all) { return all.narrow(0, begin, rows); };
      at::Tensor activated = at::empty({rows, width}, x.options());
      GatedUnitInto(mine(gate_up), moe.activation, activated);
      const at::Tensor g =
          parallel::Product(mine(dy), OfExpert(moe.down->value, e, experts)).to(at::kFloat);
      mine(row_dweights).copy_((g * activated).sum(1));
      const at::Tensor w = mine(row_weights);
      at::Tensor down_gradient = OfExpert(moe.down->gradient, e, experts);
      parallel::AccumulateWeightGradient(down_gradient, (mine(dy) * w).to(x.scalar_type()),
                                         activated);
      const at::Tensor dgate_up =
          GatedUnitGradient((g * w).to(x.scalar_type()), mine(gate_up), moe.activation);
      at::Tensor gate_up_gradient = OfExpert(moe.gate_up->gradient, e, experts);
      parallel::AccumulateWeightGradient(gate_up_gradient, dgate_up, mine(rows_of_x));
      at::Tensor to = mine(dx);
      parallel::ProductInto(to, dgate_up, OfExpert(moe.gate_up->value, e, experts));
    });
    const at::Tensor dweights =
        row_dweights.index_select(0, sorted.rows.reshape({-1})).view(saved[1].sizes());
    return {sorted.Gather(dx), dweights, {}, {}};
  }
};

}  // namespace

at::Tensor MoeFeedForward::Forward(const parallel::TensorParallel& tp, const at::Tensor& x,
                                   const at::Tensor& counted, RouterLoad& load) const {
  const at::Tensor whole = parallel::EnterColumns(x, tp);
  const Routing routing = Route(parallel::Linear(whole, *router, nullptr), spec);
  load = load.With(routing, counted, tp.group->rank() == 0);
  const ExpertRows sorted = SortByExpert(routing.experts, spec.experts);
  at::Tensor out = ExpertsFunction::apply(whole, routing.weights, *this, sorted);
  if (shared_gate != nullptr) {
    const auto product = [](const at::Tensor& a, parallel::Parameter* weight) {
      return parallel::Linear(a, *weight, nullptr);
    };
    const at::Tensor unit = GatedUnit(product(whole, shared.gate_up), shared.activation);
    out = out + product(unit, shared.down) * RowSigmoid(product(whole, shared_gate));
  }
  return parallel::LeaveRows(out, tp);
}

void MoeFeedForward::Into(const at::Tensor& x, at::Tensor& out, bool fixed_height) const {
  const auto product = [fixed_height](const at::Tensor& a, const at::Tensor& w, at::Tensor& to) {
    LinearInto(a, w, nullptr, to, fixed_height);
  };
  at::Tensor logits = at::empty({x.size(0), spec.experts}, x.options());
  product(x, router->value, logits);
  const Routing routing = Route(logits, spec);
  at::Tensor kept;  // by training alone
  out.copy_(RunExperts(*this, x, SortByExpert(routing.experts, spec.experts), routing.weights,
                       product, &kept));
  if (shared_gate == nullptr) return;
  const auto made = [&](const at::Tensor& a, const parallel::Parameter& weight) {
    at::Tensor to = at::empty({a.size(0), weight.rows()}, a.options());
    product(a, weight.value, to);
    return to;
  };
  at::Tensor unit = at::empty({x.size(0), shared.down->row_size()}, x.options());
  GatedUnitInto(made(x, *shared.gate_up), shared.activation, unit);
  out.add_(made(unit, *shared.down).mul_(RowSigmoid(made(x, *shared_gate))));
}

}  // namespace keel::model
