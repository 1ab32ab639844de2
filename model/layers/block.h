// Block: one transformer block: attention, or what mixes tokens in its place, and a feed-forward,
// each added to the stream that runs through the blocks, or both together, with norms where its
// spec places them.
//
// The order in which these follow each other is written once (block.cc) and run by training and by
// generation. Owns nothing.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <variant>
#include <vector>

#include "model/layers/attention_layer.h"
#include "model/layers/block_pass.h"
#include "model/layers/delta_mixer.h"
#include "model/layers/gated_feed_forward.h"
#include "model/layers/moe.h"
#include "model/layers/norm.h"
#include "model/layers/plain_feed_forward.h"
#include "model/ops/router_load.h"
#include "parallel/parameter.h"

namespace keel::model {

struct Block {
  double residual_scale = 1;  // see LayerSpec
  bool parallel = false;
  // Those that the spec has are used.
  Norm attention_in_norm, attention_out_norm, ffn_in_norm, ffn_out_norm;
  std::variant<AttentionLayer, DeltaMixer> mixer;
  std::variant<GatedFeedForward, MoeFeedForward, PlainFeedForward> feed_forward;
  std::vector<parallel::Parameter*> all;  // that are trained

  // What goes through the blocks.
  struct Stream {
    at::Tensor x;  // [T, hidden], or [T / n, hidden] with sequence parallelism
    RouterLoad load;
  };
  // Differentiable. Collective over TP.
  Stream Forward(const TrainPass& pass, const Stream& in) const;
  // Generation's, of pass.x in place; keys and values, or states, go into layer `layer` of the
  // store. No gradient. Collective over TP.
  void Decode(DecodePass& pass, int64_t layer) const;
  // Whether the host reads nothing of the device for that.
  bool DecodesWithoutHost() const;
};

}  // namespace keel::model
