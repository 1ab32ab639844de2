// MoeSpec: what a feed-forward of experts is, as data. Torch-free.
//
// A router gives every token a probability for each expert; the token goes through its `top_k`
// likeliest ones, each a gated feed-forward of its own, and the results are added up by those
// probabilities (Shazeer et al. 2017; Mixtral, Jiang et al. 2024; Qwen3-MoE).
//
// An expert's weights are canonical tensors of their own, named as Hugging Face names them. Tensor
// parallelism splits each expert's width, as it splits that of a dense feed-forward, so that every
// rank has a part of every expert. Expert parallelism would be an axis along which the experts
// themselves are dealt out: a rank's parameters then have the pieces of its experts alone, the
// gradients of these are not summed along the axis, and the rows that model/ops/expert_rows.h sorts
// by expert are exchanged along it before and after the products.
#pragma once

#include <cstdint>

namespace keel::model {

struct MoeSpec {
  int64_t experts = 0;  // 0: none
  int64_t top_k = 0;    // of them a token goes through
  int64_t width = 0;    // rows of an expert's gate and up, columns of its down
  // The chosen experts' probabilities are divided by their sum.
  bool renormalize = false;
  // Of the one more expert that every token goes through, whose result is multiplied by the sigmoid
  // of a product of its own (Qwen2-MoE); 0: none.
  int64_t shared_width = 0;
  friend bool operator==(const MoeSpec& a, const MoeSpec& b) = default;
};

// How a family names a block's weights of experts: "model.layers.3." + router + ".weight", and
// "model.layers.3." + experts + ".7." + gate + ".weight".
struct MoeNames {
  const char* router = "mlp.gate";
  const char* experts = "mlp.experts";
  const char* gate = "gate_proj";
  const char* up = "up_proj";
  const char* down = "down_proj";
  const char* shared = "mlp.shared_expert";  // with gate, up and down as above
  const char* shared_gate = "mlp.shared_expert_gate";
};

}  // namespace keel::model
