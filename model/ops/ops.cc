#include "model/ops/ops.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "common/kernels/cpu_kernels.h"
#include "model/ops/decode_ops.h"
#include "model/ops/device_ops.h"
#include "model/ops/norm_rows.h"
#include "model/ops/query_scale.h"
#include "parallel/tensor/autograd_capture.h"
#include "parallel/tensor/device_kernels.h"
#include "parallel/tensor/host_kernels.h"
#include "parallel/tensor/host_tensor.h"

namespace keel::model {

namespace {

using parallel::Capture;
using parallel::Captured;
using parallel::HostData;
using parallel::RowGrain;
using parallel::WithHostType;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

kernels::Gate HostGate(Activation activation) {
  return activation == Activation::kSilu ? kernels::Gate::kSilu : kernels::Gate::kGeluTanh;
}

struct RmsNormFunction : Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& weight_gradient, const NormOptions& options) {
    at::Tensor out = at::empty_like(x);
    const at::Tensor rstd = NormalizeRows(x, NormRows::Of(x), weight, options, out);
    context->save_for_backward({x, weight, rstd});
    context->saved_data["weight_gradient"] = weight_gradient;
    context->saved_data["offset"] = options.offset;
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    at::Tensor weight_gradient = context->saved_data["weight_gradient"].toTensor();
    at::Tensor dx = at::empty_like(x);
    NormalizeRowsBackward(gradients[0].contiguous(), x, NormRows::Of(x), saved[1],
                          context->saved_data["offset"].toDouble(), saved[2], dx, weight_gradient);
    return {dx, {}, {}, {}};
  }
};

// {x + y, that normalised}.
struct AddRmsNormFunction : Function<AddRmsNormFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& y,
                               const at::Tensor& weight, const at::Tensor& weight_gradient,
                               const NormOptions& options) {
    at::Tensor sum = at::empty_like(x);
    at::Tensor out = at::empty_like(x);
    const at::Tensor rstd =
        AddAndNormalize(x, y.contiguous(), NormRows::Of(x), weight, options, sum, out);
    context->save_for_backward({sum, weight, rstd});
    context->saved_data["weight_gradient"] = weight_gradient;
    context->saved_data["offset"] = options.offset;
    return {sum, out};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& sum = saved[0];
    const at::Tensor dsum = gradients[0].defined() ? gradients[0].contiguous() : at::Tensor();
    if (!gradients[1].defined()) return {dsum, dsum, {}, {}, {}};
    at::Tensor weight_gradient = context->saved_data["weight_gradient"].toTensor();
    at::Tensor dx = at::empty_like(sum);
    NormalizeRowsBackward(gradients[1].contiguous(), sum, NormRows::Of(sum), saved[1],
                          context->saved_data["offset"].toDouble(), saved[2], dx, weight_gradient,
                          dsum);
    return {dx, dx, {}, {}, {}};
  }
};

at::Tensor Activated(const at::Tensor& gate, Activation activation) {
  return activation == Activation::kSilu ? at::silu(gate) : at::gelu(gate, "tanh");
}

struct GatedUnitFunction : Function<GatedUnitFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_up,
                            Activation activation) {
    context->save_for_backward({gate_up});
    Capture(context, "activation", activation);
    at::Tensor out = at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
    GatedUnitInto(gate_up, activation, out);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {GatedUnitGradient(gradients[0].contiguous(), context->get_saved_variables()[0],
                              Captured<Activation>(context, "activation")),
            {}};
  }
};

// `out` is `in`, or has room for it.
void RotateByKernel(const parallel::DeviceKernels& kernels, const at::Tensor& in,
                    const AttentionShape& shape, const RopeTable& table,
                    const at::Tensor& positions, float direction, at::Tensor& out) {
  gpu::Rotate rotate = RotationOf(in, shape, &table, positions, out);
  rotate.direction = direction;
  kernels.table.rotate(rotate, kernels.stream);
}

void RotateInPlace(at::Tensor& qkv, const AttentionShape& shape, const RopeTable& table,
                   const at::Tensor& positions, float direction) {
  const int64_t rows = qkv.size(0);
  const int64_t width = qkv.size(1);
  const int64_t rotated = shape.heads + shape.kv_heads;
  if (parallel::ByHostKernels(qkv)) {
    WithHostType(qkv, [&]<typename T>(T) {
      at::parallel_for(0, rows, RowGrain(width), [&](int64_t begin, int64_t end) {
        kernels::Rope(HostData<T>(qkv) + begin * width, width, end - begin,
                      {rotated, shape.head_dim, 2 * table.cosine.size(1), table.interleaved},
                      positions.data_ptr<int32_t>() + begin, table.cosine.data_ptr<float>(),
                      table.sine.data_ptr<float>(), direction);
      });
    });
    return;
  }
  if (const auto kernels = parallel::KernelsFor(qkv)) {
    RotateByKernel(*kernels, qkv, shape, table, positions, direction, qkv);
    return;
  }
  const int64_t half = table.cosine.size(1);
  at::Tensor heads =
      qkv.narrow(1, 0, rotated * shape.head_dim).view({rows, rotated, shape.head_dim});
  const at::Tensor index = positions.to(at::kLong);
  const at::Tensor c = table.cosine.index_select(0, index).unsqueeze(1);  // [T, 1, d / 2]
  const at::Tensor s = table.sine.index_select(0, index).unsqueeze(1).mul(direction);
  const auto dims = [&](int64_t which) {  // the first of each pair, or the second
    return table.interleaved ? heads.slice(2, which, 2 * half, 2)
                             : heads.narrow(2, which * half, half);
  };
  // Copies, also where they are fp32 already: the first ones are overwritten before the second are.
  const at::Tensor low = dims(0).to(at::kFloat, /*non_blocking=*/false, true);
  const at::Tensor high = dims(1).to(at::kFloat, /*non_blocking=*/false, true);
  dims(0).copy_(low * c - high * s);
  dims(1).copy_(high * c + low * s);
}

struct RopeFunction : Function<RopeFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv,
                            const AttentionShape& shape, const RopeTable& table,
                            const at::Tensor& positions) {
    Capture(context, "shape", shape);
    Capture(context, "table", table);
    Capture(context, "positions", positions);
    // The input is a projection's output that nobody else reads: rotate it where it stands.
    at::Tensor out = qkv;
    RotateInPlace(out, shape, table, positions, 1);
    context->mark_dirty({qkv});
    return out;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& shape = Captured<AttentionShape>(context, "shape");
    const auto& table = Captured<RopeTable>(context, "table");
    const auto& positions = Captured<at::Tensor>(context, "positions");
    if (const auto kernels = parallel::KernelsFor(gradients[0])) {
      const at::Tensor dy = gradients[0].contiguous();
      at::Tensor dqkv = at::empty_like(dy);
      RotateByKernel(*kernels, dy, shape, table, positions, -1, dqkv);
      return {dqkv, {}, {}, {}};
    }
    at::Tensor dqkv = gradients[0].clone(at::MemoryFormat::Contiguous);
    RotateInPlace(dqkv, shape, table, positions, -1);
    return {dqkv, {}, {}, {}};
  }
};

// The query heads, and the key heads, of qkv.
NormRows QueryRows(const at::Tensor& qkv, const AttentionShape& shape) {
  return {qkv.size(0), shape.heads, shape.head_dim, qkv.size(1), 0};
}
NormRows KeyRows(const at::Tensor& qkv, const AttentionShape& shape) {
  return {qkv.size(0), shape.kv_heads, shape.head_dim, qkv.size(1), shape.heads * shape.head_dim};
}

struct HeadNormFunction : Function<HeadNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv,
                            const AttentionShape& shape, const at::Tensor& q_weight,
                            const at::Tensor& q_gradient, const at::Tensor& k_weight,
                            const at::Tensor& k_gradient, const NormOptions& options) {
    at::Tensor out = qkv.clone();
    const at::Tensor q_rstd = NormalizeRows(qkv, QueryRows(qkv, shape), q_weight, options, out);
    const at::Tensor k_rstd = NormalizeRows(qkv, KeyRows(qkv, shape), k_weight, options, out);
    context->save_for_backward({qkv, q_weight, k_weight, q_rstd, k_rstd});
    Capture(context, "shape", shape);
    context->saved_data["offset"] = options.offset;
    context->saved_data["q_gradient"] = q_gradient;
    context->saved_data["k_gradient"] = k_gradient;
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& qkv = saved[0];
    const auto& shape = Captured<AttentionShape>(context, "shape");
    const double offset = context->saved_data["offset"].toDouble();
    at::Tensor q_gradient = context->saved_data["q_gradient"].toTensor();
    at::Tensor k_gradient = context->saved_data["k_gradient"].toTensor();
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx = dy.clone();
    NormalizeRowsBackward(dy, qkv, QueryRows(qkv, shape), saved[1], offset, saved[3], dx,
                          q_gradient);
    NormalizeRowsBackward(dy, qkv, KeyRows(qkv, shape), saved[2], offset, saved[4], dx, k_gradient);
    return {dx, {}, {}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor RmsNorm(const at::Tensor& x, parallel::Parameter& weight, const NormOptions& options) {
  return RmsNormFunction::apply(x, weight.value, weight.gradient, options);
}

AddedNorm AddRmsNorm(const at::Tensor& x, const at::Tensor& y, parallel::Parameter& weight,
                     const NormOptions& options) {
  const variable_list out = AddRmsNormFunction::apply(x, y, weight.value, weight.gradient, options);
  return {out[0], out[1]};
}

at::Tensor GatedUnit(const at::Tensor& gate_up, Activation activation) {
  return GatedUnitFunction::apply(gate_up, activation);
}

at::Tensor GatedUnitGradient(const at::Tensor& dout, const at::Tensor& gate_up,
                             Activation activation) {
  const int64_t n = gate_up.size(1) / 2;
  at::Tensor dgate_up = at::empty_like(gate_up);
  if (parallel::ByHostKernels(gate_up)) {
    WithHostType(gate_up, [&]<typename T>(T) {
      at::parallel_for(0, gate_up.size(0), RowGrain(n), [&](int64_t begin, int64_t end) {
        kernels::GatedUnitBackward(HostGate(activation), HostData<T>(dout) + begin * n,
                                   HostData<T>(gate_up) + begin * 2 * n, end - begin, n,
                                   HostData<T>(dgate_up) + begin * 2 * n);
      });
    });
  } else if (const auto kernels = parallel::KernelsFor(gate_up)) {
    gpu::GatedUnitBackward backward;
    backward.element = parallel::ElementOf(gate_up);
    backward.gate = DeviceGate(activation);
    backward.rows = gate_up.size(0);
    backward.n = n;
    backward.dout = dout.const_data_ptr();
    backward.gate_up = gate_up.const_data_ptr();
    backward.dgate_up = dgate_up.data_ptr();
    kernels->table.gated_unit_backward(backward, kernels->stream);
  } else {
    const at::Tensor gate = gate_up.narrow(1, 0, n);
    const at::Tensor dgate = dout * gate_up.narrow(1, n, n);
    dgate_up.narrow(1, 0, n).copy_(activation == Activation::kSilu
                                       ? at::silu_backward(dgate, gate)
                                       : at::gelu_backward(dgate, gate, "tanh"));
    dgate_up.narrow(1, n, n).copy_(dout * Activated(gate, activation));
  }
  return dgate_up;
}

RopeTable MakeRopeTable(const RopeSpec& spec, int64_t head_dim, const RopeExtent& extent,
                        at::Device device) {
  const std::vector<float> frequencies = RopeFrequencies(spec, head_dim, extent.length);
  const auto half = static_cast<int64_t>(frequencies.size());
  const auto factor = static_cast<float>(spec.attention_factor);
  at::Tensor cosine = at::empty({extent.positions, half}, at::kFloat);
  at::Tensor sine = at::empty({extent.positions, half}, at::kFloat);
  for (int64_t i = 0; i < half; ++i) {
    for (int64_t p = 0; p < extent.positions; ++p) {
      const float angle = static_cast<float>(p) * frequencies[static_cast<size_t>(i)];
      cosine.data_ptr<float>()[p * half + i] = std::cos(angle) * factor;
      sine.data_ptr<float>()[p * half + i] = std::sin(angle) * factor;
    }
  }
  return {cosine.to(device), sine.to(device), spec.interleaved,
          QueryScales(spec, extent.positions, device)};
}

double ScoreOptions::ScaleOf(const AttentionShape& shape) const {
  return scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(shape.head_dim));
}

at::Tensor ApplyRope(const at::Tensor& qkv, const AttentionShape& shape, const RopeTable& table,
                     const at::Tensor& positions) {
  return RopeFunction::apply(qkv, shape, table, positions);
}

at::Tensor NormalizeHeads(const at::Tensor& qkv, const AttentionShape& shape,
                          parallel::Parameter& q_norm, parallel::Parameter& k_norm,
                          const NormOptions& options) {
  return HeadNormFunction::apply(qkv, shape, q_norm.value, q_norm.gradient, k_norm.value,
                                 k_norm.gradient, options);
}

}  // namespace keel::model
