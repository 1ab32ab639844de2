// The families of GLM-4.

#include "model/config/family_table.h"

namespace keel::model {

namespace {

// What both have: half of a head's dims turn, each with its neighbour, and gate and up are one
// matrix in their files (checkpoint/hf/fused_tensors.h).
constexpr FamilyTable Glm(FamilyTable own) {
  own.head_dim = 128;
  own.eps = 1.5625e-7;
  own.kv_heads = 2;
  own.rotated = 0.5;
  own.interleaved = true;
  own.read = [](ConfigReader& reader, HfConfig& config) {
    ReadMainRope(reader, config);
    config.attention_bias = reader.Bool("attention_bias", true);  // of q, k and v
  };
  own.write = [](const HfConfig& config, Json& json) {
    WriteMainRope(config, json);
    json["attention_bias"] = config.attention_bias;
  };
  return own;
}

}  // namespace

// GLM Team 2024: glm-4-9b-chat-hf.
constinit const FamilyTable kGlmFamily = Glm({
    .family = Family::kGlm,
    .model_type = "glm",
    .model_class = "GlmForCausalLM",
    .positions = 131'072,
});

// GLM-4-0414 and GLM-Z1, whose blocks have norms before and after.
constinit const FamilyTable kGlm4Family = Glm({
    .family = Family::kGlm4,
    .model_type = "glm4",
    .model_class = "Glm4ForCausalLM",
    .positions = 131'072,
    .block = {.norms = NormPlacement::kSandwich,
              .norm_names = {.attention_out = "post_self_attn_layernorm",
                             .ffn_in = "post_attention_layernorm",
                             .ffn_out = "post_mlp_layernorm"}},
});

}  // namespace keel::model
