// MoeSpec: what a feed-forward of experts is, as data. Torch-free.
//
// A router gives every token a score for each expert; the token goes through its `top_k` best ones,
// each a gated feed-forward of its own, and the results are added up by those scores. A score is
// the softmax over all experts (Shazeer et al. 2017; Mixtral, Jiang et al. 2024; Qwen3-MoE), or the
// sigmoid of each by itself; then a bias by expert, which keeps the experts busy and which nothing
// differentiates by, is added for the choice alone (DeepSeek-V3, 2024, 2.1.2; GLM-4.5; MiniMax-M2).
//
// An expert's weights are canonical tensors, named as Hugging Face names them. Tensor parallelism
// splits each expert's width, as it splits that of a dense feed-forward, so that every rank has a
// part of every expert. Expert parallelism would be an axis along which the experts themselves are
// dealt out: a rank's parameters then have the pieces of its experts alone, the gradients of these
// are not summed along the axis, and the rows that model/ops/expert_rows.h sorts by expert are
// exchanged along it before and after the products.
#pragma once

#include <cstdint>

namespace keel::model {

enum class RouterScore { kSoftmax, kSigmoid };

// What an expert is, and how its weights stand in files. kGated: a gated feed-forward, whose three
// matrices are tensors of their own. kClamped (gpt-oss, OpenAI 2025): one whose gate and up are
// kept within limits (model/ops/clamped_unit.h), with biases, and another one on the router; all
// experts of a layer stand in one tensor [experts, hidden, 2 width], columns of gate and up
// alternating, and one [experts, width, hidden].
enum class ExpertKind { kGated, kClamped };

struct MoeSpec {
  int64_t experts = 0;  // 0: none
  int64_t top_k = 0;    // of them a token goes through
  int64_t width = 0;    // rows of an expert's gate and up, columns of its down
  ExpertKind kind = ExpertKind::kGated;
  double gate_alpha = 1.702;  // with kClamped
  double gate_limit = 7;
  RouterScore score = RouterScore::kSoftmax;
  // The router's product is computed in fp32, whatever the model's dtype.
  bool fp32_router = false;
  // There is a bias for the choice, [experts] fp32, a constant of the model.
  bool choice_bias = false;
  // Experts stand in `groups` groups of equal size, of which a token takes those `top_groups` whose
  // two best experts add up to most, or whose best one is highest (DeepSeek-V2); its experts are of
  // these.
  int64_t groups = 1;
  int64_t top_groups = 1;
  bool group_by_best = false;
  // The chosen experts' scores are divided by their sum, and then multiplied by `scale`.
  bool renormalize = false;
  double scale = 1;
  // Of the one more expert that every token goes through; 0: none.
  int64_t shared_width = 0;
  // Its result is multiplied by the sigmoid of a product of its own (Qwen2-MoE).
  bool shared_gated = true;
  friend bool operator==(const MoeSpec& a, const MoeSpec& b) = default;
};

// How a family names a block's weights of experts: "model.layers.3." + router + ".weight", and
// "model.layers.3." + experts + ".7." + gate + ".weight"; with kClamped "model.layers.3." + experts
// + ".gate_up_proj", ".gate_up_proj_bias", ".down_proj" and ".down_proj_bias".
struct MoeNames {
  const char* router = "mlp.gate";
  const char* experts = "mlp.experts";
  const char* gate = "gate_proj";
  const char* up = "up_proj";
  const char* down = "down_proj";
  const char* shared = "mlp.shared_expert";  // with gate, up and down as above
  const char* shared_gate = "mlp.shared_expert_gate";
  const char* choice_bias = "mlp.gate.e_score_correction_bias";  // without ".weight"
};

}  // namespace keel::model
