// GatedFeedForward: the feed-forward of a block without experts, as training and as generation
// compute it.
//
// Owns nothing.
#pragma once

#include <ATen/ATen.h>

#include "model/config/layer_spec.h"
#include "model/layers/block_pass.h"
#include "parallel/parameter.h"

namespace keel::model {

struct GatedFeedForward {
  parallel::Parameter* gate_up = nullptr;  // [2 F, hidden]: [gate | up] of this rank
  parallel::Parameter* down = nullptr;     // [hidden, F]
  // Null, or both there: of gate and up [2 F], and of the whole sum over TP [hidden].
  parallel::Parameter* gate_up_bias = nullptr;
  parallel::Parameter* down_bias = nullptr;
  Activation activation = Activation::kSilu;

  // x [T, hidden] (or [T / n, hidden] with sequence parallelism) -> the same shape, differentiable.
  // Collective over TP.
  at::Tensor Forward(const TrainPass& pass, const at::Tensor& x) const;
  // For generation: out [T, hidden] = this rank's part of the sum over TP, to which down_bias is
  // still to be added. Not collective.
  void Into(DecodePass& pass, const at::Tensor& x, at::Tensor& out) const;
};

}  // namespace keel::model
