// The families of Qwen3-Next and Qwen3.5: three layers of four mix tokens by the gated delta rule,
// the fourth is attention whose results are gated.

#include <fmt/format.h>

#include <algorithm>

#include "model/config/family_table.h"

namespace keel::model {

namespace {

constexpr LayerSpec kBlock = {.norm_plus_one = true, .qk_norm = QkNorm::kPerHead, .gated = true};

// Every full_attention_interval-th layer is attention, unless layer_types says which.
void ReadMixers(ConfigReader& reader, HfConfig& config) {
  const auto layers =
      static_cast<size_t>(std::clamp<int64_t>(config.num_hidden_layers, 0, kMostLayers));
  const int64_t interval = reader.Positive("full_attention_interval", 4, kMostLayers);
  config.recurrent.assign(layers, false);
  const Json* types = reader.Find("layer_types");
  if (types != nullptr && (!types->is_array() || types->size() != layers)) {
    reader.Problem(fmt::format(
        "layer_types: expected a list of {} names, as many as num_hidden_layers", layers));
    return;
  }
  for (size_t i = 0; i < layers; ++i) {
    const Json type = types == nullptr ? Json() : (*types)[i];
    if (types != nullptr && type != "full_attention" && type != "linear_attention") {
      reader.Wrong("layer_types", "full_attention or linear_attention", type);
      return;
    }
    config.recurrent[i] = types != nullptr
                              ? type == "linear_attention"
                              : interval > 0 && (static_cast<int64_t>(i) + 1) % interval != 0;
  }
  const auto some = [&](bool kind) {
    return std::find(config.recurrent.begin(), config.recurrent.end(), kind) !=
           config.recurrent.end();
  };
  if (layers > 0 && !some(false)) {
    reader.Problem(types != nullptr
                       ? "layer_types: expected full_attention for one layer at least"
                       : fmt::format("full_attention_interval: {} leaves none of {} layers with "
                                     "attention, expected one at least",
                                     interval, layers));
  }
  if (!some(true)) config.recurrent.clear();
}

void ReadNext(ConfigReader& reader, HfConfig& config) {
  ReadMainRope(reader, config);
  ReadAttentionBias(reader, config);
  if (!reader.Bool("attn_output_gate", true))
    reader.Problem("attn_output_gate: false is not supported, expected true");
  if (config.activation != Activation::kSilu)
    reader.Problem("hidden_act: expected silu, which its convolutions have as well");
  reader.Find("mamba_ssm_dtype");        // states are fp32
  reader.Find("mtp_num_hidden_layers");  // these have names of their own, and are left out
  DeltaSpec& delta = config.delta;
  delta.key_heads = reader.Positive("linear_num_key_heads", 16, kMostHeads);
  delta.value_heads = reader.Positive("linear_num_value_heads", 32, kMostHeads);
  delta.key_dim = reader.Positive("linear_key_head_dim", 128, kMostHeads);
  delta.value_dim = reader.Positive("linear_value_head_dim", 128, kMostHeads);
  delta.taps = reader.Positive("linear_conv_kernel_dim", 4, kMostHeads);
  if (delta.key_heads > 0 && delta.value_heads % delta.key_heads != 0) {
    reader.Problem(
        fmt::format("linear_num_value_heads {} is not a multiple of linear_num_key_heads {}",
                    delta.value_heads, delta.key_heads));
  }
  ReadMixers(reader, config);
}

void WriteNext(const HfConfig& config, Json& json) {
  WriteNeededRope(config, json);
  json["attention_bias"] = config.output_bias;
  if (json.contains("mtp_num_hidden_layers")) json["mtp_num_hidden_layers"] = 0;
  json["linear_num_key_heads"] = config.delta.key_heads;
  json["linear_num_value_heads"] = config.delta.value_heads;
  json["linear_key_head_dim"] = config.delta.key_dim;
  json["linear_value_head_dim"] = config.delta.value_dim;
  json["linear_conv_kernel_dim"] = config.delta.taps;
  json["layer_types"] = Json::array();
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const bool attends = config.Layer(layer).mixer == Mixer::kAttention;
    json["layer_types"].push_back(attends ? "full_attention" : "linear_attention");
  }
}

void ReadNextExperts(ConfigReader& reader, HfConfig& config, const MoeSpec& fallback) {
  ReadExperts(reader, config, fallback);
  config.moe.width = reader.Positive("moe_intermediate_size", fallback.width, kMostIntermediate);
  config.moe.shared_width =
      reader.Positive("shared_expert_intermediate_size", 512, kMostIntermediate);
}

void WriteNextExperts(const HfConfig& config, Json& json) {
  json.erase("num_local_experts");
  json["num_experts"] = config.moe.experts;
  json["moe_intermediate_size"] = config.moe.width;
  json["shared_expert_intermediate_size"] = config.moe.shared_width;
  WriteExperts(config, json);
}

}  // namespace

// Qwen 2025: experts in most layers, one of them shared.
constinit const FamilyTable kQwen3NextFamily = {
    .family = Family::kQwen3Next,
    .model_type = "qwen3_next",
    .model_class = "Qwen3NextForCausalLM",
    .positions = 32'768,
    .block = kBlock,
    .head_dim = 256,
    .kv_heads = 2,
    .rotated = 0.25,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadNext(reader, config);
          config.delta.by_key_head = true;
          ReadNextExperts(reader, config, {.experts = 512, .top_k = 10, .width = 512});
          config.moe.renormalize = reader.Bool("norm_topk_prob", true);
          ReadSparseStep(reader, config);
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteNext(config, json);
          WriteNextExperts(config, json);
          json["norm_topk_prob"] = config.moe.renormalize;
          WriteSparseStep(config, json);
        },
};

// Qwen 2026. The text part of models of texts and images.
constinit const FamilyTable kQwen35Family = {
    .family = Family::kQwen35,
    .model_type = "qwen3_5_text",
    .model_class = "Qwen3_5ForCausalLM",
    .positions = 32'768,
    .block = kBlock,
    .head_dim = 256,
    .kv_heads = 4,
    .rotated = 0.25,
    .text_defaults = R"({"vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288,
        "num_hidden_layers": 32, "num_attention_heads": 16, "max_position_embeddings": 32768})",
    .read = ReadNext,
    .write = WriteNext,
};

// The same with experts in every layer, whose scores are always divided by their sum.
constinit const FamilyTable kQwen35MoeFamily = {
    .family = Family::kQwen35Moe,
    .model_type = "qwen3_5_moe_text",
    .model_class = "Qwen3_5MoeForCausalLM",
    .positions = 32'768,
    .block = kBlock,
    .head_dim = 256,
    .kv_heads = 2,
    .rotated = 0.25,
    .width_key = "moe_intermediate_size",
    .width = 512,
    .text_defaults = R"({"vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40,
        "num_attention_heads": 16, "max_position_embeddings": 32768})",
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadNext(reader, config);
          ReadNextExperts(reader, config, {.experts = 256, .top_k = 8, .width = 512});
          config.moe.renormalize = true;
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteNext(config, json);
          WriteNextExperts(config, json);
        },
};

}  // namespace keel::model
