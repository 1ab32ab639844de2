// The family of MiniMax-M2.

#include <algorithm>

#include "model/config/family_table.h"

namespace keel::model {

// MiniMax 2025: M2 and M2.1. Norms of all heads of q, and of k, together; a part of each head
// turns; Mixtral's experts, chosen by sigmoids and a bias.
constinit const FamilyTable kMiniMaxM2Family = {
    .family = Family::kMiniMaxM2,
    .model_type = "minimax_m2",
    .model_class = "MiniMaxM2ForCausalLM",
    .positions = 196'608,
    .block = {.qk_norm = QkNorm::kFullWidth},
    .moe_names = {.router = "block_sparse_moe.gate",
                  .experts = "block_sparse_moe.experts",
                  .gate = "w1",
                  .up = "w3",
                  .down = "w2",
                  .choice_bias = "block_sparse_moe.e_score_correction_bias"},
    .head_dim = 128,
    .theta = 5'000'000,
    .kv_heads = 8,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          const int64_t turned = reader.Positive("rotary_dim", config.head_dim, kMostHeads);
          if (turned > config.head_dim) reader.Problem("rotary_dim: more dims than head_dim has");
          ReadMainRope(reader, config,
                       static_cast<double>(turned) /
                           static_cast<double>(std::max<int64_t>(1, config.head_dim)));
          ReadExperts(reader, config, {.experts = 256, .top_k = 8});
          config.moe.width = config.intermediate_size;
          config.moe.score = RouterScore::kSigmoid;
          config.moe.choice_bias = true;
          config.moe.renormalize = true;
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteMainRope(config, json);
          json["partial_rotary_factor"] = config.rope.rotated;
          json["rotary_dim"] =
              WholeNumber(config.rope.rotated * static_cast<double>(config.head_dim));
          json.erase("num_experts");
          json["num_local_experts"] = config.moe.experts;
          WriteExperts(config, json);
        },
};

}  // namespace keel::model
