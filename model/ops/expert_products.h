// Products of rows that are sorted by expert, each with the weights of its own.
//
// Where the host knows which rows an expert has, an expert's are one product. Where the device
// alone knows, all are one (at::_grouped_mm, which reads there where each expert's rows end).
// Nothing here is differentiable: call it from within autograd functions or without grad mode.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "model/ops/expert_rows.h"
#include "parallel/tensor/arithmetic.h"

namespace keel::model {

// Whether products with such weights, [experts * n, k], can be made without the host's knowing what
// rows an expert has: in bf16, on the GPUs for which PyTorch has a kernel (of sm_90 and sm_100), in
// widths of multiples of 16 bytes.
bool HasGroupedProduct(const at::Tensor& weights, int64_t experts);

// x [rows, k] -> [rows, n]: each row times its expert's matrix in w [experts, k, n], whose columns
// or rows are contiguous.
at::Tensor ExpertProduct(const ExpertRows& sorted, const at::Tensor& x, const at::Tensor& w,
                         parallel::Arithmetic arithmetic);
// gradient [experts, n, k] += dy^T x for each expert's rows, dy [rows, n], x [rows, k]. Where the
// device alone knows the rows the products are rounded to their dtype before they are added.
void AddExpertGradient(at::Tensor& gradient, const ExpertRows& sorted, const at::Tensor& dy,
                       const at::Tensor& x);
// gradient [experts, n] fp32 += the sum of each expert's rows of dy [rows, n].
void AddExpertBiasGradient(at::Tensor& gradient, const ExpertRows& sorted, const at::Tensor& dy);

}  // namespace keel::model
