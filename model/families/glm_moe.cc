// The families of GLM-4.5, dots.llm1 and Solar Open: DeepSeek-V3's experts behind an ordinary
// attention.

#include "model/config/family_table.h"

namespace keel::model {

// GLM-4.5 Team 2025: GLM-4.5, 4.5-Air, 4.6. Half of each head turns; a norm of each head of q and k
// where use_qk_norm says so; no bias on the output. Published files have one layer more, which
// predicts a further token; transformers leaves it out, and so does hf_tensors.cc.
constinit const FamilyTable kGlm4MoeFamily = {
    .family = Family::kGlm4Moe,
    .model_type = "glm4_moe",
    .model_class = "Glm4MoeForCausalLM",
    .positions = 131'072,
    .block = {.qk_norm = QkNorm::kPerHead},
    .moe_names = {.shared = "mlp.shared_experts"},
    .eps = 1e-5,
    .kv_heads = 8,
    .rotated = 0.5,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadMainRope(reader, config);
          config.attention_bias = reader.Bool("attention_bias", false);  // of q, k and v
          config.qk_norm = reader.Bool("use_qk_norm", false);
          ReadExtraLayers(reader, config, 1);
          ReadRoutedExperts(
              reader, config,
              {.experts = 128, .top_k = 8, .width = 1408, .renormalize = true, .shared_width = 1},
              1);
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteMainRope(config, json);
          json["attention_bias"] = config.attention_bias;
          json["use_qk_norm"] = config.qk_norm;
          json["num_nextn_predict_layers"] = 0;
          WriteRoutedExperts(config, json);
        },
};

// rednote-hilab 2025: dots.llm1. Qwen3's attention.
constinit const FamilyTable kDots1Family = {
    .family = Family::kDots1,
    .model_type = "dots1",
    .model_class = "Dots1ForCausalLM",
    .block = {.qk_norm = QkNorm::kPerHead},
    .moe_names = {.shared = "mlp.shared_experts"},
    .kv_heads = 32,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadMainRope(reader, config);
          ReadAttentionBias(reader, config);
          const int64_t first = reader.Int("max_window_layers", 62);
          ReadWindows(
              reader, config, [first](int64_t layer) { return layer >= first; }, kUsualWindow);
          ReadRoutedExperts(reader, config, {}, 0);
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteMainRope(config, json);
          WriteWindows(config, json);
          json["attention_bias"] = config.attention_bias;
          WriteRoutedExperts(config, json);
        },
};

// Upstage 2026: Solar Open 100B. Experts in every layer; no bias on the output.
constinit const FamilyTable kSolarOpenFamily = {
    .family = Family::kSolarOpen,
    .model_type = "solar_open",
    .model_class = "SolarOpenForCausalLM",
    .positions = 131'072,
    .moe_names = {.shared = "mlp.shared_experts"},
    .head_dim = 128,
    .eps = 1e-5,
    .theta = 1'000'000,
    .kv_heads = 8,
    .width_key = "moe_intermediate_size",
    .width = 1'280,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadMainRope(reader, config);
          config.attention_bias = reader.Bool("attention_bias", false);  // of q, k and v
          ReadRoutedExperts(
              reader, config,
              {.experts = 128, .top_k = 8, .width = 1280, .renormalize = true, .shared_width = 1},
              0);
          if (!config.dense_ffn.empty())
            reader.Problem("first_k_dense_replace: expected 0, since solar_open does not read it");
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteMainRope(config, json);
          json["attention_bias"] = config.attention_bias;
          WriteRoutedExperts(config, json);
        },
};

}  // namespace keel::model
