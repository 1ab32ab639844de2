// The family of StableLM.

#include "model/config/family_table.h"

namespace keel::model {

// Bellagente et al. 2024: StableLM 3B, Zephyr 3B, StableLM 2 1.6B and Stable Code 3B. Norms by mean
// and variance, a part of each head turns; with use_parallel_residual attention and feed-forward
// stand behind one norm. StableLM 2 12B, which has norms of each head's queries and keys, is
// refused by its qk_layernorm.
constinit const FamilyTable kStableLmFamily = {
    .family = Family::kStableLm,
    .model_type = "stablelm",
    .model_class = "StableLmForCausalLM",
    .positions = 4'096,
    .block = {.norm_kind = NormKind::kLayer, .norm_bias = true, .one_norm = true},
    .eps_key = "layer_norm_eps",
    .eps = 1e-5,
    .kv_heads = 32,
    .rotated = 0.25,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadMainRope(reader, config);
          RefuseOtherHeadDim(reader, config);
          config.attention_bias = reader.Bool("use_qkv_bias", false);
          config.parallel_residual = reader.Bool("use_parallel_residual", false);
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteMainRope(config, json);
          json["use_qkv_bias"] = config.attention_bias;
          json["use_parallel_residual"] = config.parallel_residual;
          json["qk_layernorm"] = false;
        },
};

}  // namespace keel::model
