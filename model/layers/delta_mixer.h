// DeltaMixer: what mixes the tokens of a block by the gated delta rule (see DeltaSpec), as training
// and as generation compute it.
//
// Key heads are dealt out over TP ranks with the value heads that they serve. Owns nothing.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "model/layers/block_pass.h"
#include "model/ops/delta_rule.h"
#include "model/ops/ops.h"
#include "parallel/parameter.h"

namespace keel::model {

struct DeltaMixer {
  DeltaShape shape;  // this rank's heads
  NormOptions norm;  // of each value head's result
  // [q heads | k heads | v heads | gates of values | b of each value head | a], hidden columns.
  parallel::Parameter* input = nullptr;
  parallel::Parameter* convolution = nullptr;  // [channels, 1, taps]
  DeltaParameters gates;
  parallel::Parameter* value_norm = nullptr;  // [value_dim]
  parallel::Parameter* output = nullptr;      // [hidden, values]

  // x [T, hidden] (or [T / n, hidden] with sequence parallelism) -> the same shape, differentiable.
  // Collective over TP.
  at::Tensor Forward(const TrainPass& pass, const at::Tensor& x) const;
  // For generation, of the tokens that pass.sequences name, whose states in layer `layer` of the
  // store go on. x [T, hidden] -> out [T, hidden], this rank's part of the sum over TP.
  void Into(DecodePass& pass, int64_t layer, const at::Tensor& x, at::Tensor& out) const;
};

}  // namespace keel::model
