// QkvProjection: the projection of a block's input onto this rank's query, key and value heads.
//
// Where several TP ranks hold the same key/value heads, those weights are parameters of their own:
// the holders may have different numbers of query heads, and what they hold in common must lie
// alike in all their memories (see parallel/gradients/grad_buffer.h). Owns nothing.
#pragma once

#include <ATen/ATen.h>

#include "parallel/parameter.h"
#include "parallel/tensor/tensor_parallel_layers.h"

namespace keel::model {

struct QkvProjection {
  parallel::Parameter* weight = nullptr;     // [q heads | k heads | v heads], or the q heads alone
  parallel::Parameter* bias = nullptr;       // of the same; may be null
  parallel::Parameter* kv_weight = nullptr;  // [k heads | v heads] where `weight` is q's alone
  parallel::Parameter* kv_bias = nullptr;

  // x [T, hidden] (or [T / n, hidden] with sequence parallelism); the result is
  // [T, (heads + 2 kv_heads) head_dim]. Collective over TP.
  at::Tensor Forward(const parallel::TensorParallel& tp, const at::Tensor& x) const;
  // For generation: x [T, hidden] on every rank, without gradients. See LinearInto.
  void Into(const at::Tensor& x, at::Tensor& out, parallel::Arithmetic arithmetic) const;
};

}  // namespace keel::model
