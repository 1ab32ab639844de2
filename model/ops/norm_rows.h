// RMS norm of vectors within the rows of a tensor: by kernels for hosts, Keel's kernels for GPUs,
// or PyTorch's operations. What the norms of training and of generation share.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "model/ops/ops.h"

namespace keel::model {

// `groups` vectors of n, one behind another from column `first` of each row of a contiguous
// [rows, stride].
struct NormRows {
  int64_t rows = 0;
  int64_t groups = 1;
  int64_t n = 0;
  int64_t stride = 0;
  int64_t first = 0;
  // The last dim of x.
  static NormRows Of(const at::Tensor& x) {
    const int64_t n = x.size(-1);
    return {x.numel() / n, 1, n, n, 0};
  }
};

// The vectors of x, normalised, to the same places of `out`, which may be x. Returns 1 / rms,
// [rows, groups] fp32.
at::Tensor NormalizeRows(const at::Tensor& x, const NormRows& rows, const at::Tensor& weight,
                         const NormOptions& options, at::Tensor& out);

// The gradient by x of what has the gradient dy, both laid out as x, to the same places of dx,
// which may be dy; adds to weight_gradient [n] fp32 in a fixed order. With `dsum` (laid out alike),
// which is a gradient by x, too, both are added.
void NormalizeRowsBackward(const at::Tensor& dy, const at::Tensor& x, const NormRows& rows,
                           const at::Tensor& weight, double offset, const at::Tensor& rstd,
                           at::Tensor& dx, at::Tensor& weight_gradient,
                           const at::Tensor& dsum = {});

// x + y in x's dtype to `sum`, which may be x, and that, normalised, to `out`. Returns 1 / rms.
at::Tensor AddAndNormalize(const at::Tensor& x, const at::Tensor& y, const NormRows& rows,
                           const at::Tensor& weight, const NormOptions& options, at::Tensor& sum,
                           at::Tensor& out);

}  // namespace keel::model
