// Products of rows with a weight, of which each row's bits are its own: they do not depend on how
// many rows are multiplied beside it. Generation's, and a training's forward that is to have its
// bits (arithmetic.h).
#pragma once

#include <ATen/ATen.h>

#include "parallel/tensor/arithmetic.h"

namespace keel::parallel {

// out [T, n] = x [T, k] w^T (+ bias [n]). `out` has x's dtype, or is fp32. The rows of w [n, k] are
// contiguous, or its columns, without a bias and with an `out` of x's dtype. On a CPU by Keel's
// kernels for hosts (common/kernels/cpu_decode.h). With kBatchInvariant a row does not depend on T
// on CUDA either: products are then of so many rows, whatever T. Not differentiable.
void LinearInto(const at::Tensor& x, const at::Tensor& w, const at::Tensor* bias, at::Tensor& out,
                Arithmetic arithmetic);

// x w^T (+ bias), in x's dtype, as a training's forward computes it: with kBatchInvariant with the
// bits of LinearInto, else by Product (matrix_product.h).
at::Tensor Multiplied(const at::Tensor& x, const at::Tensor& w, const at::Tensor* bias,
                      Arithmetic arithmetic);

}  // namespace keel::parallel
