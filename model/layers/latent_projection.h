// LatentProjection: the projections of multi-head latent attention (see LatentSpec): a block's
// input to a few dims that all heads share, and those to this rank's query, key and value heads.
//
// What is shared is computed whole by every TP rank. Heads come out as those of QkvProjection do,
// so that rotation, cache and attention are the same for both: of each the dims that turn first,
// and zeros behind those that the head has. The cache holds keys and values of all heads, so
// that generation computes what training does. Owns nothing.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "model/config/layer_spec.h"
#include "model/layers/projected_heads.h"
#include "model/ops/ops.h"
#include "parallel/parameter.h"
#include "parallel/tensor/tensor_parallel_layers.h"

namespace keel::model {

struct LatentProjection {
  LatentSpec spec;
  AttentionShape shape;  // this rank's heads, as many of keys and values as of queries
  // [q_rank, hidden], with a bias or null, a norm, and [heads key_dims, q_rank]; without q_rank
  // `q_heads` alone, [heads key_dims, hidden].
  parallel::Parameter* q_shared = nullptr;
  parallel::Parameter* q_shared_bias = nullptr;
  parallel::Parameter* q_norm = nullptr;
  parallel::Parameter* q_heads = nullptr;
  // [kv_rank + turned_dims, hidden]: what keys and values come of, and the key that turns.
  parallel::Parameter* kv_shared = nullptr;
  parallel::Parameter* kv_shared_bias = nullptr;  // may be null
  parallel::Parameter* kv_norm = nullptr;         // of kv_rank
  parallel::Parameter* kv_heads = nullptr;        // [heads kv_dims, kv_rank]

  // x [T, hidden] (or [T / n, hidden] with sequence parallelism); the result is
  // [T, 3 heads head_dim], queries, keys and values. Collective over TP.
  ProjectedHeads Forward(const parallel::TensorParallel& tp, const at::Tensor& x) const;
  // For generation: x [T, hidden] on every rank, without gradients. See LinearInto. There are no
  // gates.
  at::Tensor Into(const at::Tensor& x, at::Tensor& out, parallel::Arithmetic arithmetic) const;
  // The dims of values alone, of attended [T, heads head_dim].
  at::Tensor Values(const at::Tensor& attended) const;
};

}  // namespace keel::model
