// The families of Qwen2 and Qwen3.

#include "model/config/family_table.h"

namespace keel::model {

namespace {

// Of both.
constexpr std::string_view kTextDefaults =
    R"({"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
        "num_hidden_layers": 32, "num_attention_heads": 32,
        "max_position_embeddings": 32768})";

// The upper layers have a window, where a model has one at all.
void ReadQwenWindows(ConfigReader& reader, HfConfig& config) {
  const int64_t first = reader.Int("max_window_layers", 28);
  if (reader.Bool("use_sliding_window", false)) {
    ReadWindows(
        reader, config, [first](int64_t layer) { return layer >= first; }, kUsualWindow);
  } else {
    ReadNoWindows(reader);
  }
}

void WriteQwenWindows(const HfConfig& config, Json& json) {
  WriteMainRope(config, json);
  WriteWindows(config, json);
  json["use_sliding_window"] = config.sliding_window > 0;
}

}  // namespace

// Qwen2 and Qwen2.5: biases on q, k and v.
constinit const FamilyTable kQwen2Family = {
    .family = Family::kQwen2,
    .model_type = "qwen2",
    .model_class = "Qwen2ForCausalLM",
    .positions = 32'768,
    .kv_heads = 32,
    .text_defaults = kTextDefaults,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadMainRope(reader, config);
          ReadQwenWindows(reader, config);
          reader.Bool("attention_bias", true);  // files have it either way; the biases are there
          config.attention_bias = true;
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteQwenWindows(config, json);
          json["attention_bias"] = false;  // of the output
        },
};

constinit const FamilyTable kQwen3Family = {
    .family = Family::kQwen3,
    .model_type = "qwen3",
    .model_class = "Qwen3ForCausalLM",
    .positions = 32'768,
    .block = {.qk_norm = QkNorm::kPerHead},
    .head_dim = 128,
    .kv_heads = 32,
    .text_defaults = kTextDefaults,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadMainRope(reader, config);
          ReadQwenWindows(reader, config);
          ReadAttentionBias(reader, config);
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteQwenWindows(config, json);
          json["attention_bias"] = config.output_bias;
        },
};

}  // namespace keel::model
