#include "model/ops/ops.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "common/cpu_kernels.h"
#include "model/ops/decode_ops.h"
#include "parallel/tensor/autograd_capture.h"
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

// Rows to normalise: `rows` groups of `group` vectors of n, groups `stride` elements apart.
struct NormRows {
  int64_t rows, group, n, stride;
};

// out and x may be the same memory.
void NormForward(const at::Tensor& x, int64_t x_offset, const at::Tensor& weight, const NormRows& r,
                 const NormOptions& options, at::Tensor& out, int64_t out_offset,
                 at::Tensor& rstd) {
  WithHostType(x, [&]<typename T>(T) {
    at::parallel_for(0, r.rows, RowGrain(r.group * r.n), [&](int64_t begin, int64_t end) {
      for (int64_t g = 0; g < r.group; ++g) {
        for (int64_t row = begin; row < end; ++row) {
          const int64_t at = row * r.stride + g * r.n;
          kernels::RmsNorm(HostData<T>(x) + x_offset + at, r.stride, HostData<T>(weight),
                           {static_cast<float>(options.eps), static_cast<float>(options.offset)}, 1,
                           r.n, HostData<T>(out) + out_offset + at, r.stride,
                           rstd.data_ptr<float>() + row * r.group + g);
        }
      }
    });
  });
}

// The number of partial sums of a weight gradient is fixed, so that results do not depend on
// threads.
constexpr int64_t kNormPartials = 16;

void NormBackward(const at::Tensor& dy, int64_t dy_offset, const at::Tensor& x, int64_t x_offset,
                  const at::Tensor& weight, double offset, const at::Tensor& rstd,
                  const NormRows& r, at::Tensor& dx, int64_t dx_offset,
                  at::Tensor& weight_gradient) {
  const int64_t pieces = std::min(kNormPartials, std::max<int64_t>(1, r.rows));
  at::Tensor partial = at::zeros({pieces, r.n}, weight_gradient.options());
  WithHostType(x, [&]<typename T>(T) {
    at::parallel_for(0, pieces, 1, [&](int64_t first, int64_t last) {
      for (int64_t p = first; p < last; ++p) {
        const int64_t begin = r.rows * p / pieces;
        const int64_t end = r.rows * (p + 1) / pieces;
        for (int64_t row = begin; row < end; ++row) {
          const int64_t at = row * r.stride;
          kernels::RmsNormBackward(
              HostData<T>(dy) + dy_offset + at, r.n, HostData<T>(x) + x_offset + at, r.n,
              HostData<T>(weight), static_cast<float>(offset),
              rstd.data_ptr<float>() + row * r.group, r.group, r.n,
              HostData<T>(dx) + dx_offset + at, r.n, partial.data_ptr<float>() + p * r.n);
        }
      }
    });
  });
  weight_gradient.add_(partial.sum(0));
}

// What a norm multiplies by.
at::Tensor Scaled(const at::Tensor& weight, double offset) {
  return offset == 0 ? weight : weight.to(at::kFloat).add(offset);
}

struct RmsNormFunction : Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& weight_gradient, const NormOptions& options) {
    const int64_t n = x.size(-1);
    const int64_t rows = x.numel() / n;
    at::Tensor out = at::empty_like(x);
    at::Tensor rstd = at::empty({rows}, x.options().dtype(at::kFloat));
    if (parallel::ByHostKernels(x)) {
      NormForward(x, 0, weight, {rows, 1, n, n}, options, out, 0, rstd);
    } else {
      const at::Tensor wide = x.to(at::kFloat).view({rows, n});
      rstd = wide.square().mean(1).add_(options.eps).rsqrt_();
      out = (wide * rstd.unsqueeze(1))
                .mul_(Scaled(weight, options.offset))
                .to(x.scalar_type())
                .view_as(x);
    }
    context->save_for_backward({x, weight, rstd});
    context->saved_data["weight_gradient"] = weight_gradient;
    context->saved_data["offset"] = options.offset;
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& rstd = saved[2];
    at::Tensor weight_gradient = context->saved_data["weight_gradient"].toTensor();
    const double offset = context->saved_data["offset"].toDouble();
    const at::Tensor dy = gradients[0].contiguous();
    const int64_t n = x.size(-1);
    const int64_t rows = x.numel() / n;
    if (parallel::ByHostKernels(x)) {
      at::Tensor dx = at::empty_like(x);
      NormBackward(dy, 0, x, 0, weight, offset, rstd, {rows, 1, n, n}, dx, 0, weight_gradient);
      return {dx, {}, {}, {}};
    }
    const at::Tensor h = x.to(at::kFloat).view({rows, n}) * rstd.unsqueeze(1);
    const at::Tensor g = dy.to(at::kFloat).view({rows, n});
    weight_gradient.add_((g * h).sum(0));
    const at::Tensor gw = g * Scaled(weight, offset);
    const at::Tensor dx = (gw - h * (gw * h).mean(1, true)) * rstd.unsqueeze(1);
    return {dx.to(x.scalar_type()).view_as(x), {}, {}, {}};
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

void RotateInPlace(at::Tensor& qkv, const AttentionShape& shape, const RopeTable& table,
                   const at::Tensor& positions, float direction) {
  const int64_t rows = qkv.size(0);
  const int64_t width = qkv.size(1);
  const int64_t rotated = shape.heads + shape.kv_heads;
  if (parallel::ByHostKernels(qkv)) {
    WithHostType(qkv, [&]<typename T>(T) {
      at::parallel_for(0, rows, RowGrain(width), [&](int64_t begin, int64_t end) {
        kernels::Rope(HostData<T>(qkv) + begin * width, width, end - begin,
                      {rotated, shape.head_dim, 2 * table.cosine.size(1)},
                      positions.data_ptr<int32_t>() + begin, table.cosine.data_ptr<float>(),
                      table.sine.data_ptr<float>(), direction);
      });
    });
    return;
  }
  const int64_t half = table.cosine.size(1);
  at::Tensor heads =
      qkv.narrow(1, 0, rotated * shape.head_dim).view({rows, rotated, shape.head_dim});
  const at::Tensor index = positions.to(at::kLong);
  const at::Tensor c = table.cosine.index_select(0, index).unsqueeze(1);  // [T, 1, d / 2]
  const at::Tensor s = table.sine.index_select(0, index).unsqueeze(1).mul(direction);
  // Copies, also where they are fp32 already: the first half is overwritten before the second is.
  const at::Tensor low = heads.narrow(2, 0, half).to(at::kFloat, /*non_blocking=*/false, true);
  const at::Tensor high = heads.narrow(2, half, half).to(at::kFloat, /*non_blocking=*/false, true);
  heads.narrow(2, 0, half).copy_(low * c - high * s);
  heads.narrow(2, half, half).copy_(high * c + low * s);
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
    at::Tensor dqkv = gradients[0].clone(at::MemoryFormat::Contiguous);
    RotateInPlace(dqkv, Captured<AttentionShape>(context, "shape"),
                  Captured<RopeTable>(context, "table"), Captured<at::Tensor>(context, "positions"),
                  -1);
    return {dqkv, {}, {}, {}};
  }
};

struct HeadNormFunction : Function<HeadNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv,
                            const AttentionShape& shape, const at::Tensor& q_weight,
                            const at::Tensor& q_gradient, const at::Tensor& k_weight,
                            const at::Tensor& k_gradient, const NormOptions& options) {
    const int64_t rows = qkv.size(0);
    const int64_t width = qkv.size(1);
    const int64_t d = shape.head_dim;
    at::Tensor out = qkv.clone();
    at::Tensor q_rstd = at::empty({rows, shape.heads}, qkv.options().dtype(at::kFloat));
    at::Tensor k_rstd = at::empty({rows, shape.kv_heads}, qkv.options().dtype(at::kFloat));
    if (parallel::ByHostKernels(qkv)) {
      NormForward(qkv, 0, q_weight, {rows, shape.heads, d, width}, options, out, 0, q_rstd);
      NormForward(qkv, shape.heads * d, k_weight, {rows, shape.kv_heads, d, width}, options, out,
                  shape.heads * d, k_rstd);
    } else {
      const auto normalize = [&](int64_t first, int64_t heads, const at::Tensor& weight,
                                 at::Tensor& rstd) {
        const at::Tensor wide =
            qkv.narrow(1, first * d, heads * d).reshape({rows, heads, d}).to(at::kFloat);
        rstd = wide.square().mean(2).add_(options.eps).rsqrt_();
        out.narrow(1, first * d, heads * d)
            .copy_((wide * rstd.unsqueeze(2))
                       .mul_(Scaled(weight, options.offset))
                       .view({rows, heads * d}));
      };
      normalize(0, shape.heads, q_weight, q_rstd);
      normalize(shape.heads, shape.kv_heads, k_weight, k_rstd);
    }
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
    const int64_t rows = qkv.size(0);
    const int64_t width = qkv.size(1);
    const int64_t d = shape.head_dim;
    const double offset = context->saved_data["offset"].toDouble();
    at::Tensor q_gradient = context->saved_data["q_gradient"].toTensor();
    at::Tensor k_gradient = context->saved_data["k_gradient"].toTensor();
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx = dy.clone();
    if (parallel::ByHostKernels(qkv)) {
      NormBackward(dy, 0, qkv, 0, saved[1], offset, saved[3], {rows, shape.heads, d, width}, dx, 0,
                   q_gradient);
      NormBackward(dy, shape.heads * d, qkv, shape.heads * d, saved[2], offset, saved[4],
                   {rows, shape.kv_heads, d, width}, dx, shape.heads * d, k_gradient);
    } else {
      const auto normalize = [&](int64_t first, int64_t heads, const at::Tensor& weight,
                                 const at::Tensor& rstd, at::Tensor& weight_gradient) {
        const at::Tensor x =
            qkv.narrow(1, first * d, heads * d).reshape({rows, heads, d}).to(at::kFloat);
        const at::Tensor g =
            dy.narrow(1, first * d, heads * d).reshape({rows, heads, d}).to(at::kFloat);
        const at::Tensor h = x * rstd.unsqueeze(2);
        weight_gradient.add_((g * h).sum(at::IntArrayRef{0, 1}));
        const at::Tensor gw = g * Scaled(weight, offset);
        const at::Tensor out = (gw - h * (gw * h).mean(2, true)) * rstd.unsqueeze(2);
        dx.narrow(1, first * d, heads * d).copy_(out.view({rows, heads * d}));
      };
      normalize(0, shape.heads, saved[1], saved[3], q_gradient);
      normalize(shape.heads, shape.kv_heads, saved[2], saved[4], k_gradient);
    }
    return {dx, {}, {}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor RmsNorm(const at::Tensor& x, parallel::Parameter& weight, const NormOptions& options) {
  return RmsNormFunction::apply(x, weight.value, weight.gradient, options);
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
  return {cosine.to(device), sine.to(device)};
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
