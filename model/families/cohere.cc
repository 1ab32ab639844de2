// The families of Cohere's Command and Aya.

#include "model/config/family_table.h"

namespace keel::model {

namespace {

// What both have: attention and feed-forward behind one norm by mean and variance, without a bias;
// dims that turn with their neighbours; logits that are multiplied.
constexpr FamilyTable Cohere(FamilyTable own) {
  own.positions = 8'192;
  own.block.norm_kind = NormKind::kLayer;
  own.block.one_norm = true;
  own.tied = true;
  own.eps_key = "layer_norm_eps";
  own.eps = 1e-5;
  own.interleaved = true;
  return own;
}

void ReadCohere(ConfigReader& reader, HfConfig& config) {
  config.parallel_residual = true;
  config.logit_scale = reader.Within(1e-9, 1e9, "logit_scale", 0.0625);
  ReadMainRope(reader, config);
  ReadAttentionBias(reader, config);
}

void WriteCohere(const HfConfig& config, Json& json) {
  WriteRopeAndBias(config, json);
  json["logit_scale"] = config.logit_scale;
}

void ReadCohereWindows(ConfigReader& reader, HfConfig& config) {
  if (reader.json().contains("sliding_window") && reader.Find("sliding_window") == nullptr)
    reader.Missing("sliding_window", "a number");
  const int64_t pattern = reader.Positive("sliding_window_pattern", 4, kMostLayers);
  ReadWindows(
      reader, config,
      [pattern](int64_t layer) { return pattern > 0 && (layer + 1) % pattern != 0; }, kUsualWindow);
  TurnWindowsAlone(config);
}

// Which layers have the window, for versions of transformers that do not know layer_types.
void WritePattern(const HfConfig& config, Json& json) {
  json.erase("sliding_window_pattern");
  for (int64_t pattern = 1; pattern <= config.num_hidden_layers + 1; ++pattern) {
    bool same = true;
    for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
      same = same && (config.Layer(layer).window > 0) == ((layer + 1) % pattern != 0);
    if (!same) continue;
    json["sliding_window_pattern"] = pattern;
    return;
  }
}

// Whose turns each version of transformers takes by another base where a file does not say it.
void ReadSaidTheta(ConfigReader& reader) {
  for (const char* map : {"rope_parameters", "rope_scaling"}) {
    const Json* const said = reader.Find(map);
    if (said != nullptr && said->is_object() && said->contains("rope_theta")) return;
  }
  if (reader.Find("rope_theta") == nullptr)
    reader.Missing("rope_theta", "a number: transformers 4 takes 10000, and 5 takes 500000");
}

}  // namespace

// Cohere 2024: Command R, Aya 23 and Aya Expanse. Command R+, which has norms of queries and keys
// by head, is refused by its use_qk_norm.
constinit const FamilyTable kCohereFamily = Cohere({
    .family = Family::kCohere,
    .model_type = "cohere",
    .model_class = "CohereForCausalLM",
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadSaidTheta(reader);
          ReadCohere(reader, config);
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteCohere(config, json);
          json["use_qk_norm"] = false;
        },
});

// Cohere 2024 and 2025: Command R7B and Command A. Three layers of four have the window, and the
// fourth is not turned.
constinit const FamilyTable kCohere2Family = Cohere({
    .family = Family::kCohere2,
    .model_type = "cohere2",
    .model_class = "Cohere2ForCausalLM",
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadCohere(reader, config);
          ReadCohereWindows(reader, config);
          RefuseOtherHeadDim(reader, config);
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteCohere(config, json);
          WriteWindows(config, json);
          WritePattern(config, json);
        },
});

}  // namespace keel::model
