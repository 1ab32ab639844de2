#include "model/ops/norm_rows.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "common/kernels/cpu_kernels.h"
#include "parallel/tensor/device_kernels.h"
#include "parallel/tensor/host_kernels.h"
#include "parallel/tensor/host_tensor.h"

namespace keel::model {

namespace {

using parallel::HostData;
using parallel::RowGrain;
using parallel::WithHostType;

void OnHost(const at::Tensor& x, const NormRows& r, const at::Tensor& weight,
            const NormOptions& options, at::Tensor& out, at::Tensor& rstd) {
  WithHostType(x, [&]<typename T>(T) {
    at::parallel_for(0, r.rows, RowGrain(r.groups * r.n), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t g = 0; g < r.groups; ++g) {
          const int64_t at = r.first + row * r.stride + g * r.n;
          kernels::RmsNorm(HostData<T>(x) + at, r.n, HostData<T>(weight),
                           {static_cast<float>(options.eps), static_cast<float>(options.offset)}, 1,
                           r.n, HostData<T>(out) + at, r.n,
                           rstd.data_ptr<float>() + row * r.groups + g);
        }
      }
    });
  });
}

// The number of partial sums of a weight gradient is fixed, so that results do not depend on
// threads.
constexpr int64_t kNormPartials = 16;

void BackwardOnHost(const at::Tensor& dy, const at::Tensor& x, const NormRows& r,
                    const at::Tensor& weight, double offset, const at::Tensor& rstd, at::Tensor& dx,
                    at::Tensor& weight_gradient) {
  const int64_t pieces = std::min(kNormPartials, std::max<int64_t>(1, r.rows));
  at::Tensor partial = at::zeros({pieces, r.n}, weight_gradient.options());
  WithHostType(x, [&]<typename T>(T) {
    at::parallel_for(0, pieces, 1, [&](int64_t first, int64_t last) {
      for (int64_t p = first; p < last; ++p) {
        const int64_t begin = r.rows * p / pieces;
        const int64_t end = r.rows * (p + 1) / pieces;
        for (int64_t row = begin; row < end; ++row) {
          const int64_t at = r.first + row * r.stride;
          kernels::RmsNormBackward(HostData<T>(dy) + at, r.n, HostData<T>(x) + at, r.n,
                                   HostData<T>(weight), static_cast<float>(offset),
                                   rstd.data_ptr<float>() + row * r.groups, r.groups, r.n,
                                   HostData<T>(dx) + at, r.n, partial.data_ptr<float>() + p * r.n);
        }
      }
    });
  });
  weight_gradient.add_(partial.sum(0));
}

// The vectors as [rows, groups, n].
at::Tensor VectorsOf(const at::Tensor& x, const NormRows& r) {
  return x.view({r.rows, r.stride})
      .narrow(1, r.first, r.groups * r.n)
      .unflatten(1, {r.groups, r.n});
}

// What a norm multiplies by.
at::Tensor Scaled(const at::Tensor& weight, double offset) {
  return offset == 0 ? weight : weight.to(at::kFloat).add(offset);
}

gpu::Vectors KernelVectors(const NormRows& r) { return {r.rows, r.groups, r.n, r.stride}; }

// The first vector.
void* Begin(const at::Tensor& x, const NormRows& r) {
  return static_cast<std::byte*>(x.data_ptr()) + r.first * x.element_size();
}

gpu::RmsNorm KernelNorm(const at::Tensor& x, const NormRows& rows, const at::Tensor& weight,
                        const NormOptions& options, at::Tensor& out, at::Tensor& rstd) {
  gpu::RmsNorm norm;
  norm.element = parallel::ElementOf(x);
  norm.vectors = KernelVectors(rows);
  norm.x = Begin(x, rows);
  norm.weight = weight.const_data_ptr();
  norm.eps = static_cast<float>(options.eps);
  norm.offset = static_cast<float>(options.offset);
  norm.out = Begin(out, rows);
  norm.rstd = rstd.data_ptr<float>();
  return norm;
}

}  // namespace

at::Tensor NormalizeRows(const at::Tensor& x, const NormRows& rows, const at::Tensor& weight,
                         const NormOptions& options, at::Tensor& out) {
  at::Tensor rstd = at::empty({rows.rows, rows.groups}, x.options().dtype(at::kFloat));
  if (parallel::ByHostKernels(x)) {
    OnHost(x, rows, weight, options, out, rstd);
  } else if (const auto kernels = parallel::KernelsFor(x)) {
    kernels->table.rms_norm(KernelNorm(x, rows, weight, options, out, rstd), kernels->stream);
  } else {
    const at::Tensor wide = VectorsOf(x, rows).to(at::kFloat);
    rstd = wide.square().mean(2).add_(options.eps).rsqrt_();
    VectorsOf(out, rows).copy_((wide * rstd.unsqueeze(2)).mul_(Scaled(weight, options.offset)));
  }
  return rstd;
}

void NormalizeRowsBackward(const at::Tensor& dy, const at::Tensor& x, const NormRows& rows,
                           const at::Tensor& weight, double offset, const at::Tensor& rstd,
                           at::Tensor& dx, at::Tensor& weight_gradient, const at::Tensor& dsum) {
  if (const auto kernels = parallel::KernelsFor(x)) {
    gpu::RmsNormBackward backward;
    backward.element = parallel::ElementOf(x);
    backward.vectors = KernelVectors(rows);
    const at::Tensor scratch =
        at::empty({gpu::WeightGradientParts(backward.vectors), rows.n}, weight_gradient.options());
    backward.dy = Begin(dy, rows);
    backward.x = Begin(x, rows);
    backward.dsum = dsum.defined() ? Begin(dsum, rows) : nullptr;
    backward.weight = weight.const_data_ptr();
    backward.offset = static_cast<float>(offset);
    backward.rstd = rstd.const_data_ptr<float>();
    backward.dx = Begin(dx, rows);
    backward.weight_gradient = weight_gradient.data_ptr<float>();
    backward.scratch = scratch.data_ptr<float>();
    kernels->table.rms_norm_backward(backward, kernels->stream);
    return;
  }
  if (parallel::ByHostKernels(x)) {
    BackwardOnHost(dy, x, rows, weight, offset, rstd, dx, weight_gradient);
  } else {
    const at::Tensor wide_rstd = rstd.unsqueeze(2);
    const at::Tensor h = VectorsOf(x, rows).to(at::kFloat) * wide_rstd;
    const at::Tensor g = VectorsOf(dy, rows).to(at::kFloat);
    weight_gradient.add_((g * h).sum(at::IntArrayRef{0, 1}));
    const at::Tensor gw = g * Scaled(weight, offset);
    VectorsOf(dx, rows).copy_((gw - h * (gw * h).mean(2, true)) * wide_rstd);
  }
  if (dsum.defined()) VectorsOf(dx, rows).add_(VectorsOf(dsum, rows));
}

at::Tensor AddAndNormalize(const at::Tensor& x, const at::Tensor& y, const NormRows& rows,
                           const at::Tensor& weight, const NormOptions& options, at::Tensor& sum,
                           at::Tensor& out) {
  const auto kernels = parallel::KernelsFor(x);
  if (!kernels) {
    at::add_out(sum, x, y);
    return NormalizeRows(sum, rows, weight, options, out);
  }
  at::Tensor rstd = at::empty({rows.rows, rows.groups}, x.options().dtype(at::kFloat));
  gpu::RmsNorm norm = KernelNorm(x, rows, weight, options, out, rstd);
  norm.add = Begin(y, rows);
  norm.sum = Begin(sum, rows);
  kernels->table.rms_norm(norm, kernels->stream);
  return rstd;
}

}  // namespace keel::model
