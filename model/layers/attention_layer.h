// AttentionLayer: the attention of a block, as training and as generation compute it.
//
// Owns nothing.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <variant>

#include "model/config/layer_spec.h"
#include "model/layers/block_pass.h"
#include "model/layers/latent_projection.h"
#include "model/layers/qkv_projection.h"
#include "model/ops/full_width_norm.h"
#include "model/ops/ops.h"
#include "parallel/parameter.h"

namespace keel::model {

struct AttentionLayer {
  std::variant<QkvProjection, LatentProjection> projection;
  parallel::Parameter* q_norm = nullptr;  // with a qk-norm
  parallel::Parameter* k_norm = nullptr;
  parallel::Parameter* output = nullptr;
  parallel::Parameter* output_bias = nullptr;  // may be null
  QkNorm qk_norm = QkNorm::kNone;
  FullWidth width;       // of the qk-norm
  AttentionShape shape;  // this rank's heads
  RopeChoice rope = RopeChoice::kMain;
  ScoreOptions scores;

  // x [T, hidden] (or [T / n, hidden] with sequence parallelism) -> the same shape, differentiable.
  // Collective over TP.
  at::Tensor Forward(const TrainPass& pass, const at::Tensor& x) const;
  // For generation, of the tokens that pass.sequences name; their keys and values go into layer
  // `layer` of the store. x [T, hidden] -> out [T, hidden], this rank's part of the sum over TP,
  // without the bias. Collective over TP with a norm of all heads together.
  void Into(DecodePass& pass, int64_t layer, const at::Tensor& x, at::Tensor& out) const;
};

}  // namespace keel::model
