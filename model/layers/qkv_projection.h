// QkvProjection: the projection of a block's input onto this rank's query, key and value heads, and
// onto what gates the results of attention, where a model has that (LayerSpec::gated).
//
// Where several TP ranks hold the same key/value heads, those weights are parameters of their own:
// the holders may have different numbers of query heads, and what they hold in common must lie
// alike in all their memories (see parallel/gradients/grad_buffer.h). Owns nothing.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "model/layers/projected_heads.h"
#include "parallel/parameter.h"
#include "parallel/tensor/tensor_parallel_layers.h"

namespace keel::model {

struct QkvProjection {
  // [q heads | k heads | v heads | gates], without k and v heads where these stand apart.
  parallel::Parameter* weight = nullptr;
  parallel::Parameter* bias = nullptr;       // of the same; may be null
  parallel::Parameter* kv_weight = nullptr;  // [k heads | v heads] where `weight` is q's alone
  parallel::Parameter* kv_bias = nullptr;
  int64_t gates = 0;  // rows of `weight`

  // x [T, hidden] (or [T / n, hidden] with sequence parallelism). Collective over TP.
  ProjectedHeads Forward(const parallel::TensorParallel& tp, const at::Tensor& x) const;
  // For generation: x [T, hidden] on every rank, without gradients. The heads to `out`; returns the
  // gates, which may be undefined. See LinearInto.
  at::Tensor Into(const at::Tensor& x, at::Tensor& out, parallel::Arithmetic arithmetic) const;
};

}  // namespace keel::model
