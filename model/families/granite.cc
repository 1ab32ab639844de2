// The families of Granite.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "model/config/family_table.h"

namespace keel::model {

namespace {

// A factor of 0 would leave nothing of what it multiplies, or divide by it.
double ReadFactor(ConfigReader& reader, std::string_view key) {
  return reader.Within(1e-9, 1e9, key, 1);
}

void ReadFactors(ConfigReader& reader, HfConfig& config) {
  config.embedding_multiplier = ReadFactor(reader, "embedding_multiplier");
  config.attention_multiplier = ReadFactor(reader, "attention_multiplier");
  config.residual_multiplier = ReadFactor(reader, "residual_multiplier");
  config.logits_scaling = ReadFactor(reader, "logits_scaling");
}

void WriteFactors(const HfConfig& config, Json& json) {
  json["embedding_multiplier"] = config.embedding_multiplier;
  json["attention_multiplier"] = config.attention_multiplier;
  json["residual_multiplier"] = config.residual_multiplier;
  json["logits_scaling"] = config.logits_scaling;
}

// What files say of the mixers and experts that a dense model does not have.
constexpr const char* kOfOthers[] = {
    "num_experts_per_tok",   "router_aux_loss_coef", "mamba_n_heads",   "mamba_n_groups",
    "mamba_d_state",         "mamba_d_head",         "mamba_d_conv",    "mamba_expand",
    "mamba_chunk_size",      "mamba_conv_bias",      "mamba_proj_bias", "time_step_limit",
    "time_step_min",         "time_step_max",        "time_step_floor", "init_method",
    "normalization_function"};

bool IsAttention(const Json& type) { return type == "attention" || type == "full_attention"; }

void ReadDense(ConfigReader& reader, HfConfig& config) {
  if (const int64_t experts = reader.Int("num_local_experts", 8); experts != 0) {
    reader.Problem(fmt::format(
        "num_local_experts: {}, expected 0: of Granite 4 Keel reads the dense models", experts));
  }
  // Mamba, where the file does not say it.
  const Json* const types = reader.Find("layer_types");
  const bool attention = types != nullptr && types->is_array() &&
                         std::ssize(*types) == config.num_hidden_layers &&
                         std::all_of(types->begin(), types->end(), IsAttention);
  if (!attention) {
    reader.Problem(fmt::format(
        "layer_types: expected \"attention\" num_hidden_layers ({}) times: of Granite 4 Keel reads "
        "the models without Mamba",
        config.num_hidden_layers));
  }
  for (const char* key : kOfOthers) reader.Find(key);
  config.intermediate_size = reader.Positive("shared_intermediate_size", 1024, kMostIntermediate);
  const std::string positions = reader.String("position_embedding_type", "nope");
  if (positions != "rope" && positions != "nope")
    reader.Wrong("position_embedding_type", "rope, nope or null", positions);
  if (positions == "nope") {
    config.unturned.assign(
        static_cast<size_t>(std::clamp<int64_t>(config.num_hidden_layers, 0, kMostLayers)), true);
  }
}

}  // namespace

// IBM Granite 3 and 4.1: Llama's block with factors in four places (as maximal update
// parametrization has them; Yang et al. 2022), whose scores are not divided by the root of a head's
// size.
constinit const FamilyTable kGraniteFamily = {
    .family = Family::kGranite,
    .model_type = "granite",
    .model_class = "GraniteForCausalLM",
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadRopeAndBiases(reader, config);
          ReadFactors(reader, config);
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteRopeAndBiases(config, json);
          WriteFactors(config, json);
        },
};

// IBM 2025; granite-4.0-micro, -1b and -350m: Granite's block, with gate and up in one tensor of
// their files (checkpoint/hf/fused_tensors.h), as the experts of their siblings have them.
constinit const FamilyTable kGraniteHybridFamily = {
    .family = Family::kGraniteHybrid,
    .model_type = "granitemoehybrid",
    .model_class = "GraniteMoeHybridForCausalLM",
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadDense(reader, config);
          ReadMainRope(reader, config);
          ReadAttentionBias(reader, config);
          ReadFactors(reader, config);
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteRopeAndBias(config, json);
          WriteFactors(config, json);
          json["shared_intermediate_size"] = config.intermediate_size;
          json["position_embedding_type"] = config.unturned.empty() ? Json("rope") : Json(nullptr);
          json["layer_types"] =
              std::vector<Json>(static_cast<size_t>(config.num_hidden_layers), "attention");
          json["num_local_experts"] = json["num_experts_per_tok"] = 0;
        },
};

}  // namespace keel::model
