// The family of SmolLM3.

#include <fmt/format.h>

#include "model/config/family_table.h"

namespace keel::model {

namespace {

// no_rope_layers has 1 for each layer that IS turned; without it every no_rope_layer_interval-th is
// not.
void ReadUnturned(ConfigReader& reader, HfConfig& config) {
  const auto layers = static_cast<size_t>(config.num_hidden_layers);
  const int64_t interval = reader.Positive("no_rope_layer_interval", 4, kMostLayers);
  const Json* turned = reader.Find("no_rope_layers");
  if (interval < 1 || config.num_hidden_layers < 1 || config.num_hidden_layers > kMostLayers)
    return;
  config.unturned.assign(layers, false);
  if (turned != nullptr && (!turned->is_array() || turned->size() != layers)) {
    reader.Problem(fmt::format(
        "no_rope_layers: expected a list of {} numbers, as many as num_hidden_layers", layers));
    return;
  }
  for (size_t i = 0; i < layers; ++i) {
    if (turned == nullptr) {
      config.unturned[i] = (i + 1) % static_cast<size_t>(interval) == 0;
    } else if ((*turned)[i] == 0 || (*turned)[i] == 1) {
      config.unturned[i] = (*turned)[i] == 0;
    } else {
      reader.Wrong("no_rope_layers", "0 or 1 for each layer", (*turned)[i]);
      return;
    }
  }
}

}  // namespace

// Bakouch et al. 2025: Llama's block, of which some layers are not turned by positions.
constinit const FamilyTable kSmolLm3Family = {
    .family = Family::kSmolLm3,
    .model_type = "smollm3",
    .model_class = "SmolLM3ForCausalLM",
    .positions = 32'768,
    .tied = true,
    .theta = 2'000'000,
    .kv_heads = 4,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadMainRope(reader, config);
          ReadAttentionBias(reader, config);
          ReadMlpBias(reader, config);
          ReadUnturned(reader, config);
          const std::vector<bool>& unturned = config.unturned;
          if (reader.Bool("use_sliding_window", false)) {
            ReadWindows(reader, config, [&unturned](int64_t layer) {
              return !unturned.empty() && unturned[static_cast<size_t>(layer)];
            });
          } else {
            ReadNoWindows(reader);
          }
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteMainRope(config, json);
          WriteWindows(config, json);
          json["attention_bias"] = config.output_bias;
          WriteMlpBias(config, json);
          json["use_sliding_window"] = config.sliding_window > 0;
          Json turned = Json::array();
          for (const bool not_turned : config.unturned) turned.push_back(not_turned ? 0 : 1);
          json["no_rope_layers"] = turned;
        },
};

}  // namespace keel::model
