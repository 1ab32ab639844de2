// The families of Qwen2 and Qwen3 with experts.

#include "model/config/family_table.h"

namespace keel::model {

namespace {

void ReadQwenExperts(ConfigReader& reader, HfConfig& config, const MoeSpec& fallback) {
  ReadExperts(reader, config, fallback);
  config.moe.width = reader.Positive("moe_intermediate_size", fallback.width, kMostIntermediate);
  config.moe.renormalize = reader.Bool("norm_topk_prob", false);
  ReadSparseStep(reader, config);
}

void WriteQwenExperts(const HfConfig& config, Json& json) {
  json["use_sliding_window"] = config.sliding_window > 0;
  json.erase("num_local_experts");
  json["num_experts"] = config.moe.experts;
  json["moe_intermediate_size"] = config.moe.width;
  json["norm_topk_prob"] = config.moe.renormalize;
  WriteSparseStep(config, json);
  WriteExperts(config, json);
}

}  // namespace

// Qwen1.5-MoE and Qwen2-MoE: Qwen2's block, with experts in most layers and beside them one that
// every token goes through.
constinit const FamilyTable kQwen2MoeFamily = {
    .family = Family::kQwen2Moe,
    .model_type = "qwen2_moe",
    .model_class = "Qwen2MoeForCausalLM",
    .positions = 32'768,
    .kv_heads = 16,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadMainRope(reader, config);
          config.attention_bias = reader.Bool("qkv_bias", true);
          const int64_t first = reader.Int("max_window_layers", 28);
          if (reader.Bool("use_sliding_window", false)) {
            const Json* window = reader.Find("sliding_window");
            if (window == nullptr || *window == 0)
              reader.Problem("use_sliding_window: true, but sliding_window gives no window");
            ReadWindows(reader, config,
                        [first](int64_t layer) { return layer % 2 == 0 && layer < first; });
          } else {
            ReadNoWindows(reader);
          }
          ReadQwenExperts(reader, config, {.experts = 60, .top_k = 4, .width = 1408});
          config.moe.shared_width =
              reader.Positive("shared_expert_intermediate_size", 5632, kMostIntermediate);
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteMainRope(config, json);
          WriteWindows(config, json);
          WriteQwenExperts(config, json);
          json["qkv_bias"] = config.attention_bias;
          json["shared_expert_intermediate_size"] = config.moe.shared_width;
        },
};

// Qwen3's block, with experts in most layers.
constinit const FamilyTable kQwen3MoeFamily = {
    .family = Family::kQwen3Moe,
    .model_type = "qwen3_moe",
    .model_class = "Qwen3MoeForCausalLM",
    .positions = 32'768,
    .block = {.qk_norm = QkNorm::kPerHead},
    .kv_heads = 4,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadMainRope(reader, config);
          ReadAttentionBias(reader, config);
          reader.Find("max_window_layers");  // files have it; every layer has the window or none
          if (reader.Bool("use_sliding_window", false)) {
            if (!reader.json().contains("sliding_window"))
              reader.Missing("sliding_window", "a number, or null for none");
            ReadOneWindow(reader, config);
          } else {
            reader.Find("sliding_window");
          }
          ReadQwenExperts(reader, config, {.experts = 128, .top_k = 8, .width = 768});
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteMainRope(config, json);
          json["attention_bias"] = config.output_bias;
          if (config.sliding_window > 0) json["sliding_window"] = config.sliding_window;
          WriteQwenExperts(config, json);
        },
};

}  // namespace keel::model
