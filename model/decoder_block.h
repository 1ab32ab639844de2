// Decoder::Block: the parameters of one transformer block.
#pragma once

#include <vector>

#include "model/decoder.h"
#include "model/moe.h"
#include "model/qkv_projection.h"

namespace keel::model {

// Of a parameter that every TP rank has whole; its gradient is summed over TP where each of them
// sees only some tokens or heads.
inline constexpr parallel::AxisSet kWhole = parallel::kDataAxes.With({parallel::Axis::kTp});
constexpr parallel::AxisSet WholeSum(bool over_tp) {
  return over_tp ? kWhole : parallel::kDataAxes;
}

struct Decoder::Block {
  LayerSpec spec;
  // Those that the spec's placement of norms has.
  parallel::Parameter* attention_in_norm = nullptr;
  parallel::Parameter* attention_out_norm = nullptr;
  parallel::Parameter* ffn_in_norm = nullptr;
  parallel::Parameter* ffn_out_norm = nullptr;
  QkvProjection qkv;
  parallel::Parameter* q_norm = nullptr;  // with a qk-norm
  parallel::Parameter* k_norm = nullptr;
  parallel::Parameter* output = nullptr;
  parallel::Parameter* output_bias = nullptr;  // with attention_bias
  parallel::Parameter* gate_up = nullptr;      // [gate | up] of this rank; with a dense ffn
  parallel::Parameter* down = nullptr;
  MoeFeedForward moe;  // with experts
  std::vector<parallel::Parameter*> all;
};

}  // namespace keel::model
