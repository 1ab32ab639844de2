// The family of Mixtral.

#include "model/config/family_table.h"

namespace keel::model {

// Jiang et al. 2024: Mistral's block with experts in place of the feed-forward, in every layer.
constinit const FamilyTable kMixtralFamily = {
    .family = Family::kMixtral,
    .model_type = "mixtral",
    .model_class = "MixtralForCausalLM",
    .positions = 131'072,
    .moe_names = {.router = "block_sparse_moe.gate",
                  .experts = "block_sparse_moe.experts",
                  .gate = "w1",
                  .up = "w3",
                  .down = "w2"},
    .eps = 1e-5,
    .theta = 1'000'000,
    .kv_heads = 8,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadMainRope(reader, config);
          ReadOneWindow(reader, config);
          ReadExperts(reader, config, {.experts = 8, .top_k = 2});
          config.moe.width = config.intermediate_size;
          config.moe.renormalize = true;
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteMainRope(config, json);
          WriteOneWindow(config, json);
          json.erase("num_experts");
          json["num_local_experts"] = config.moe.experts;
          WriteExperts(config, json);
        },
};

}  // namespace keel::model
