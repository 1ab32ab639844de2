// Norm: what a place of a decoder normalises by, as training and as generation compute it: by the
// root of the mean of squares (Zhang & Sennrich 2019), or by mean and variance (Ba et al. 2016).
//
// Owns nothing.
#pragma once

#include <ATen/ATen.h>

#include "model/config/layer_spec.h"
#include "model/ops/ops.h"
#include "parallel/parameter.h"

namespace keel::model {

struct Norm {
  NormKind kind = NormKind::kRms;
  NormOptions options;
  parallel::Parameter* weight = nullptr;  // [n]; null: there is no norm at this place
  parallel::Parameter* bias = nullptr;    // [n]; may be null, and is with kRms

  bool used() const { return weight != nullptr; }

  // x [..., n] contiguous. Differentiable.
  at::Tensor Forward(const at::Tensor& x) const;
  // x + y, and its norm.
  AddedNorm ForwardSum(const at::Tensor& x, const at::Tensor& y) const;
  // For generation, rows of n, without gradients: the norm of x to `out`, which may be x; and
  // x += y with its norm to `out`.
  void Into(const at::Tensor& x, at::Tensor& out) const;
  void SumInto(at::Tensor& x, const at::Tensor& y, at::Tensor& out) const;
};

}  // namespace keel::model
