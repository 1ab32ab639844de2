// Products with a frozen weight and its adapter (LoRA, Hu et al. 2021):
//   x W^T (+ b) + scale x A^T B^T,
// each operation of which is rounded to the model's dtype, as in PEFT.
//
// Under tensor parallelism nothing is sent for it: where W's output is split, every rank has A
// whole and its rows of B; where its input is split, each has its columns of A and B whole, and the
// sum over ranks that the product needs anyway is that of both. Not collective.
#pragma once

#include <ATen/ATen.h>

#include "parallel/parameter.h"
#include "parallel/tensor/arithmetic.h"

namespace keel::parallel {

// x [T, in] -> [T, out], differentiable by x, A and B: their gradients are added to
// Parameter::gradient. `weight` has an adapter. `bias` may be null; it gets no gradient.
at::Tensor AdaptedLinear(const at::Tensor& x, const Parameter& weight, const at::Tensor* bias,
                         Arithmetic arithmetic);

// out [T, out] += scale x A^T B^T, with the bits of AdaptedLinear of kBatchInvariant where that is
// the arithmetic. Not differentiable.
void AddAdapted(const at::Tensor& x, const Adapter& adapter, at::Tensor& out,
                Arithmetic arithmetic);

}  // namespace keel::parallel
