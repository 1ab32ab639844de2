#include "model/config/family_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/text.h"
#include "model/config/rope_config.h"

namespace keel::model {

std::span<const FamilyTable> Families() {
  // In the order of enum Family.
  static const FamilyTable kTables[] = {
      kLlamaFamily,         kQwen2Family,   kQwen3Family,     kMistralFamily, kSmolLm3Family,
      kGemma2Family,        kGemma3Family,  kOlmo2Family,     kOlmo3Family,   kQwen3MoeFamily,
      kMixtralFamily,       kPhi3Family,    kGraniteFamily,   kSeedOssFamily, kArceeFamily,
      kQwen2MoeFamily,      kExaone4Family, kGemmaFamily,     kOlmoeFamily,   kGlmFamily,
      kGlm4Family,          kErnie45Family, kMinistralFamily, kCwmFamily,     kInternLm3Family,
      kGraniteHybridFamily, kHunyuanFamily};
  return kTables;
}

const FamilyTable& FamilyOf(Family family) { return Families()[static_cast<size_t>(family)]; }

const FamilyTable* FindFamily(std::string_view model_type) {
  for (const FamilyTable& table : Families())
    if (table.model_type == model_type) return &table;
  return nullptr;
}

std::string FamilyNames() {
  std::vector<std::string_view> names;
  for (const FamilyTable& table : Families()) names.push_back(table.model_type);
  return fmt::format("{}", fmt::join(names, ", "));
}

int64_t PositionsSaid(ConfigReader& reader, const HfConfig& config) {
  return reader.Find("max_position_embeddings") != nullptr ? config.max_position_embeddings : 0;
}

void TakeHeadDimOfNull(ConfigReader& reader, HfConfig& config) {
  const bool null = reader.json().contains("head_dim") && reader.Find("head_dim") == nullptr;
  if (null && config.num_attention_heads > 0)
    config.head_dim = config.hidden_size / config.num_attention_heads;
}

void ReadMainRope(ConfigReader& reader, HfConfig& config) {
  const bool one_of_two = FamilyOf(config.family).two_rotations;
  const Json* const scaling = reader.Find("rope_scaling");
  if (one_of_two && scaling != nullptr && scaling->is_object() && !scaling->contains("rope_type") &&
      scaling->value("type", Json("default")) != "default") {
    // transformers 5 would take it as an update of a map that has a rope_type.
    reader.Problem("rope_scaling: type: expected rope_type in its place for this model_type");
  }
  const FamilyTable& family = FamilyOf(config.family);
  config.rope = ReadRope(reader, {.head_dim = config.head_dim,
                                  .max_positions = PositionsSaid(reader, config),
                                  .theta = family.theta,
                                  .partial = family.rotated != 1,
                                  .rotated = family.rotated,
                                  .one_of_two = one_of_two});
  config.rope.interleaved = family.interleaved;
}

bool ReadTwoRopes(ConfigReader& reader, HfConfig& config, double local_theta) {
  const Json* maps = reader.Find("rope_parameters");
  if (maps == nullptr) return false;
  if (reader.Find("rope_scaling") != nullptr)
    reader.Problem("rope_parameters and rope_scaling are both given: leave one out");
  // Of the whole layers, where their map does not say it.
  const double theta = reader.Within(1, 1e30, "rope_theta", FamilyOf(config.family).theta);
  if (!maps->is_object() ||
      (!maps->contains("full_attention") && !maps->contains("sliding_attention"))) {
    reader.Wrong("rope_parameters", "a map of full_attention and sliding_attention", *maps);
    return true;
  }
  const auto read = [&](const char* key, double theta_outside) {
    const Json none = Json::object();
    const auto it = maps->find(key);
    return ReadRopeMap(it == maps->end() || it->is_null() ? none : *it,
                       {.head_dim = config.head_dim,
                        .max_positions = PositionsSaid(reader, config),
                        .theta = theta_outside,
                        .one_of_two = true},
                       reader);
  };
  for (const auto& [key, value] : maps->items()) {
    if (key != "full_attention" && key != "sliding_attention") {
      reader.Problem(fmt::format(
          "rope_parameters: expected full_attention and sliding_attention alone, found \"{}\"",
          Printable(key)));
      return true;
    }
  }
  config.rope = read("full_attention", theta);
  config.local_rope = read("sliding_attention", local_theta);
  if (config.local_rope->by_length() || *config.local_rope == config.rope) {
    if (config.local_rope->by_length())
      reader.Problem("rope_parameters: sliding_attention with a type that goes by a text's length");
    config.local_rope.reset();
  }
  return true;
}

// In v5's spelling, which alone says both.
void WriteTwoRopes(const HfConfig& config, Json& json) {
  for (const char* key : {"rope_theta", "rope_scaling", "rope_local_base_freq"}) json.erase(key);
  json["rope_parameters"] = {
      {"full_attention", RopeParametersJson(config.rope)},
      {"sliding_attention", RopeParametersJson(config.local_rope.value_or(config.rope))}};
}

double ReadSoftcap(ConfigReader& reader, std::string_view key, double fallback) {
  // Written as null it is none; left out it is the family's.
  const bool given = reader.json().contains(key);
  if (reader.Find(key) == nullptr) return given ? 0 : fallback;
  return reader.Within(1e-3, 1e6, key, fallback);
}

void WriteMainRope(const HfConfig& config, Json& json) {
  json["rope_theta"] = config.rope.theta;
  json["rope_scaling"] = RopeScalingJson(config.rope);
  if (config.rope.rotated != 1 || FamilyOf(config.family).rotated != 1 ||
      json.contains("partial_rotary_factor"))
    json["partial_rotary_factor"] = config.rope.rotated;
}

void ReadWindows(ConfigReader& reader, HfConfig& config,
                 const std::function<bool(int64_t layer)>& by_default, int64_t fallback) {
  const bool given = reader.Find("sliding_window") != nullptr ||
                     (fallback > 0 && !reader.json().contains("sliding_window"));
  const int64_t window = reader.Positive("sliding_window", fallback, kMostPositions);
  const auto layers =
      static_cast<size_t>(std::clamp<int64_t>(config.num_hidden_layers, 0, kMostLayers));
  std::vector<bool> windowed(layers);
  const Json* types = reader.Find("layer_types");
  if (types == nullptr) {
    for (size_t i = 0; i < layers; ++i) windowed[i] = given && by_default(static_cast<int64_t>(i));
  } else if (!types->is_array() || types->size() != layers) {
    reader.Problem(fmt::format(
        "layer_types: expected a list of {} names, as many as num_hidden_layers", layers));
  } else {
    for (size_t i = 0; i < layers; ++i) {
      const Json& type = (*types)[i];
      windowed[i] = type == "sliding_attention";
      if (!windowed[i] && type != "full_attention") {
        reader.Wrong("layer_types", "full_attention or sliding_attention", type);
        return;
      }
      if (windowed[i] && !given) {
        reader.Missing("sliding_window", "a number, for layer_types with sliding_attention");
        return;
      }
    }
  }
  if (std::find(windowed.begin(), windowed.end(), true) == windowed.end()) return;
  config.sliding_window = window;
  config.windowed = std::move(windowed);
}

void ReadNoWindows(ConfigReader& reader) {
  reader.Find("sliding_window");
  const Json* types = reader.Find("layer_types");
  if (types == nullptr) return;
  if (!types->is_array()) reader.Wrong("layer_types", "a list of names", *types);
  for (const Json& type : *types) {
    if (type == "full_attention") continue;
    reader.Wrong("layer_types", "full_attention, without use_sliding_window", type);
    return;
  }
}

void WriteWindows(const HfConfig& config, Json& json) {
  Json types = Json::array();
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    types.push_back(config.Layer(layer).window > 0 ? "sliding_attention" : "full_attention");
  json["layer_types"] = types;
  if (config.sliding_window > 0) json["sliding_window"] = config.sliding_window;
}

Json WholeNumber(double value) {
  return value == std::floor(value) ? Json(static_cast<int64_t>(value)) : Json(value);
}

void ReadOneWindow(ConfigReader& reader, HfConfig& config) {
  const bool given = reader.Find("sliding_window") != nullptr;
  const int64_t window = reader.Positive("sliding_window", 0, kMostPositions);
  if (!given) return;
  config.sliding_window = window;
  config.windowed.assign(
      static_cast<size_t>(std::clamp<int64_t>(config.num_hidden_layers, 0, kMostLayers)), true);
}

void WriteOneWindow(const HfConfig& config, Json& json) {
  json["sliding_window"] = nullptr;
  if (config.sliding_window > 0) json["sliding_window"] = config.sliding_window;
}

void ReadAttentionBias(ConfigReader& reader, HfConfig& config) {
  config.attention_bias = config.output_bias = reader.Bool("attention_bias", false);
}

void ReadExperts(ConfigReader& reader, HfConfig& config, const MoeSpec& fallback, double balance) {
  const Json* count = reader.Find("num_experts");
  const Json* local = reader.Find("num_local_experts");
  if (count != nullptr && local != nullptr && *count != *local) {
    reader.Problem(fmt::format("num_experts is {} and num_local_experts {}: leave one out",
                               Shown(*count), Shown(*local)));
  }
  const char* key = local != nullptr && count == nullptr ? "num_local_experts" : "num_experts";
  config.moe.experts = reader.Positive(key, fallback.experts, kMostExperts);
  config.moe.top_k = reader.Positive("num_experts_per_tok", fallback.top_k, kMostExperts);
  if (config.moe.top_k > config.moe.experts) {
    reader.Problem(fmt::format("num_experts_per_tok {} is more than {} {}", config.moe.top_k, key,
                               config.moe.experts));
  }
  config.output_router_logits = reader.Bool("output_router_logits", false);
  config.router_aux_loss_coef = reader.Within(0, 1e6, "router_aux_loss_coef", balance);
}

void WriteExperts(const HfConfig& config, Json& json) {
  json["num_experts_per_tok"] = config.moe.top_k;
  json["output_router_logits"] = config.output_router_logits;
  json["router_aux_loss_coef"] = config.router_aux_loss_coef;
}

double ReadDropout(ConfigReader& reader, std::string_view key, double fallback) {
  return reader.Within(0, 1, key, fallback);
}

void ReadRopeAndBias(ConfigReader& reader, HfConfig& config) {
  ReadMainRope(reader, config);
  ReadAttentionBias(reader, config);
}

void WriteRopeAndBias(const HfConfig& config, Json& json) {
  WriteMainRope(config, json);
  json["attention_bias"] = config.output_bias;
}

void ReadMlpBias(ConfigReader& reader, HfConfig& config) {
  config.mlp_bias = reader.Bool("mlp_bias", false);
}

void WriteMlpBias(const HfConfig& config, Json& json) {
  if (config.mlp_bias || json.contains("mlp_bias")) json["mlp_bias"] = config.mlp_bias;
}

void ReadRopeAndBiases(ConfigReader& reader, HfConfig& config) {
  ReadRopeAndBias(reader, config);
  ReadMlpBias(reader, config);
}

void WriteRopeAndBiases(const HfConfig& config, Json& json) {
  WriteRopeAndBias(config, json);
  WriteMlpBias(config, json);
}

}  // namespace keel::model
