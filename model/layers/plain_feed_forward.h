// PlainFeedForward: the feed-forward without a gate, as training and as generation compute it.
//
// Owns nothing.
#pragma once

#include <ATen/ATen.h>

#include "model/layers/block_pass.h"
#include "parallel/parameter.h"

namespace keel::model {

struct PlainFeedForward {
  Activation activation = Activation::kRelu2;
  parallel::Parameter* up = nullptr;    // [F, hidden] of this rank
  parallel::Parameter* down = nullptr;  // [hidden, F]
  // Null, or both there: of up [F], and of the whole sum over TP [hidden].
  parallel::Parameter* up_bias = nullptr;
  parallel::Parameter* down_bias = nullptr;

  // x [T, hidden] (or [T / n, hidden] with sequence parallelism) -> the same shape, differentiable.
  // Collective over TP.
  at::Tensor Forward(const TrainPass& pass, const at::Tensor& x) const;
  // For generation: out [T, hidden] = this rank's part of the sum over TP, to which down_bias is
  // still to be added. Not collective.
  void Into(DecodePass& pass, const at::Tensor& x, at::Tensor& out) const;
};

}  // namespace keel::model
