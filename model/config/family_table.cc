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
      kLlamaFamily,       kQwen2Family,         kQwen3Family,      kMistralFamily,
      kSmolLm3Family,     kGemma2Family,        kGemma3Family,     kOlmo2Family,
      kOlmo3Family,       kQwen3MoeFamily,      kMixtralFamily,    kPhi3Family,
      kGraniteFamily,     kSeedOssFamily,       kArceeFamily,      kQwen2MoeFamily,
      kExaone4Family,     kGemmaFamily,         kOlmoeFamily,      kGlmFamily,
      kGlm4Family,        kErnie45Family,       kMinistralFamily,  kCwmFamily,
      kInternLm3Family,   kGraniteHybridFamily, kHunyuanFamily,    kGlm4MoeFamily,
      kDots1Family,       kMiniMaxM2Family,     kDeepseekV2Family, kDeepseekV3Family,
      kGlm4MoeLiteFamily, kYoutuFamily,         kGptOssFamily,     kQwen3NextFamily,
      kQwen35Family,      kQwen35MoeFamily,     kCohereFamily,     kCohere2Family,
      kStarcoder2Family,  kStableLmFamily,      kNemotronFamily,   kGptNeoxFamily,
      kMinistral3Family,  kHeliumFamily,        kJais2Family,      kVaultGemmaFamily,
      kSolarOpenFamily,   kGpt2Family,          kGptNeoFamily,     kOptFamily,
      kGptBigCodeFamily,  kPhiFamily,           kGptJFamily};
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

void PassOver(ConfigReader& reader, std::initializer_list<const char*> keys) {
  for (const char* key : keys) reader.Find(key);
}

void PassOverGptHeads(ConfigReader& reader) {
  PassOver(reader, {"summary_type", "summary_use_proj", "summary_activation",
                    "summary_proj_to_labels", "summary_first_dropout", "gradient_checkpointing"});
}

int64_t PositionsSaid(ConfigReader& reader, const HfConfig& config) {
  return reader.Find("max_position_embeddings") != nullptr ? config.max_position_embeddings : 0;
}

void TakeHeadDimOfNull(ConfigReader& reader, HfConfig& config) {
  const bool null = reader.json().contains("head_dim") && reader.Find("head_dim") == nullptr;
  if (null && config.num_attention_heads > 0)
    config.head_dim = config.hidden_size / config.num_attention_heads;
}

void RefuseOtherHeadDim(ConfigReader& reader, const HfConfig& config) {
  const int64_t heads = std::max<int64_t>(1, config.num_attention_heads);
  if (config.head_dim == config.hidden_size / heads) return;
  reader.Problem(
      fmt::format("head_dim {}: expected hidden_size / num_attention_heads ({}), which {} "
                  "takes whatever the file says",
                  config.head_dim, config.hidden_size / heads, FamilyOf(config.family).model_type));
}

void RefuseFewerKeyHeads(ConfigReader& reader, const HfConfig& config) {
  if (config.num_key_value_heads != config.num_attention_heads) {
    reader.Problem(fmt::format("num_key_value_heads: expected {} for model_type {}",
                               reader.InFile("num_attention_heads"),
                               FamilyOf(config.family).model_type));
  }
  RefuseOtherHeadDim(reader, config);
}

void RefuseRotation(ConfigReader& reader, const HfConfig& config) {
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const Json* rope = reader.Find(key);
    if (rope == nullptr) continue;
    const Json type =
        rope->is_object() ? rope->value("rope_type", rope->value("type", Json())) : Json();
    if (type == "default") continue;
    reader.Problem(fmt::format(
        "{}: {}: expected no such key, which says nothing of positions to model_type {}", key,
        Shown(*rope), FamilyOf(config.family).model_type));
  }
}

void EraseHeadKeys(Json& json) {
  for (const char* key : {"rope_theta", "num_key_value_heads", "head_dim"}) json.erase(key);
}

void ReadMainRope(ConfigReader& reader, HfConfig& config, double rotated) {
  const bool one_of_two = FamilyOf(config.family).two_rotations;
  const Json* const scaling = reader.Find("rope_scaling");
  if (one_of_two && scaling != nullptr && scaling->is_object() && !scaling->contains("rope_type") &&
      scaling->value("type", Json("default")) != "default") {
    // transformers 5 would take it as an update of a map that has a rope_type.
    reader.Problem("rope_scaling: type: expected rope_type in its place for this model_type");
  }
  const FamilyTable& family = FamilyOf(config.family);
  config.rope = ReadRope(reader, {.head_dim = config.rope_dims(),
                                  .max_positions = PositionsSaid(reader, config),
                                  .theta = family.theta,
                                  .partial = family.rotated != 1 || rotated > 0,
                                  .rotated = rotated > 0 ? rotated : family.rotated,
                                  .one_of_two = one_of_two,
                                  .latent = config.latent.used(),
                                  .scaled_queries = family.scaled_queries});
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

void ReadNeededRope(ConfigReader& reader, HfConfig& config) {
  if (reader.Find("rope_parameters") == nullptr && reader.Find("rope_scaling") == nullptr)
    reader.Missing("rope_parameters", "a map with a rope_type, default for none");
  ReadMainRope(reader, config);
}

void WriteNeededRope(const HfConfig& config, Json& json) {
  for (const char* old : {"rope_theta", "rope_scaling"}) json.erase(old);
  json["rope_parameters"] = RopeParametersJson(config.rope);
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

void TurnWindowsAlone(HfConfig& config) {
  config.unturned = config.windowed;
  config.unturned.resize(
      static_cast<size_t>(std::clamp<int64_t>(config.num_hidden_layers, 0, kMostLayers)));
  config.unturned.flip();
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

namespace {

// Of two keys for one number, which must agree, the one that the file has.
const char* KeyOf(ConfigReader& reader, const char* usual, const char* other) {
  const Json* a = reader.Find(usual);
  const Json* b = reader.Find(other);
  if (a != nullptr && b != nullptr && *a != *b) {
    reader.Problem(
        fmt::format("{} is {} and {} {}: leave one out", usual, Shown(*a), other, Shown(*b)));
  }
  return b != nullptr && a == nullptr ? other : usual;
}

}  // namespace

void ReadExperts(ConfigReader& reader, HfConfig& config, const MoeSpec& fallback, double balance) {
  const char* key = KeyOf(reader, "num_experts", "num_local_experts");
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

void ReadSparseStep(ConfigReader& reader, HfConfig& config) {
  const int64_t step = reader.Positive("decoder_sparse_step", 1, kMostLayers);
  const auto layers =
      static_cast<size_t>(std::clamp<int64_t>(config.num_hidden_layers, 0, kMostLayers));
  std::vector<bool> dense(layers);
  for (size_t i = 0; i < layers; ++i)
    dense[i] = step > 0 && (static_cast<int64_t>(i) + 1) % step != 0;
  if (const Json* only = reader.Find("mlp_only_layers"); only != nullptr) {
    if (!only->is_array()) reader.Wrong("mlp_only_layers", "a list of layers", *only);
    for (const Json& layer : only->is_array() ? *only : Json::array()) {
      if (!layer.is_number_integer() || layer.get<int64_t>() < 0) {
        reader.Wrong("mlp_only_layers", "numbers of layers, from 0", layer);
        return;
      }
      const auto index = layer.get<uint64_t>();  // one that the model lacks says nothing
      if (index < layers) dense[index] = true;
    }
  }
  if (std::find(dense.begin(), dense.end(), true) != dense.end())
    config.dense_ffn = std::move(dense);
}

void WriteSparseStep(const HfConfig& config, Json& json) {
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = Json::array();
  for (size_t i = 0; i < config.dense_ffn.size(); ++i)
    if (config.dense_ffn[i]) json["mlp_only_layers"].push_back(i);
}

void ReadRoutedExperts(ConfigReader& reader, HfConfig& config, const MoeSpec& fallback,
                       int64_t dense_layers) {
  const auto size = [&](std::string_view key, int64_t usual, int64_t most) {
    return reader.Positive(key, usual > 0 ? std::optional(usual) : std::nullopt, most);
  };
  MoeSpec& moe = config.moe;
  moe.score = RouterScore::kSigmoid;
  moe.fp32_router = moe.choice_bias = true;
  moe.shared_gated = false;
  const char* key = KeyOf(reader, "n_routed_experts", "num_local_experts");
  moe.experts = size(key, fallback.experts, kMostExperts);
  moe.top_k = size("num_experts_per_tok", fallback.top_k, kMostExperts);
  moe.width = size("moe_intermediate_size", fallback.width, kMostIntermediate);
  moe.shared_width = moe.width * size("n_shared_experts", fallback.shared_width, kMostExperts);
  moe.groups = size("n_group", fallback.groups, kMostExperts);
  moe.top_groups = size("topk_group", fallback.top_groups, kMostExperts);
  moe.renormalize = reader.Bool("norm_topk_prob", fallback.renormalize);
  moe.scale = reader.Within(1e-6, 1e6, "routed_scaling_factor", fallback.scale);
  // transformers adds no loss by it in these families.
  reader.Bool("output_router_logits", false);
  const int64_t dense = reader.Int("first_k_dense_replace", dense_layers);
  if (dense < 0) reader.Wrong("first_k_dense_replace", "a number of layers", dense);
  const auto layers =
      static_cast<size_t>(std::clamp<int64_t>(config.num_hidden_layers, 0, kMostLayers));
  if (dense > 0) {
    config.dense_ffn.assign(layers, false);
    std::fill_n(config.dense_ffn.begin(), std::min(layers, static_cast<size_t>(dense)), true);
  }
  moe.group_by_best = fallback.group_by_best;
  // Which then nothing goes by.
  if (moe.group_by_best && reader.String("topk_method", "greedy") == "greedy")
    moe.groups = moe.top_groups = 1;
  if (moe.groups < 1 || moe.experts < 1) return;  // said already
  const int64_t least = moe.group_by_best ? 1 : 2;
  const int64_t each = moe.experts / moe.groups;
  if (moe.experts % moe.groups != 0 || each < least) {
    reader.Problem(fmt::format("{} {} in n_group {}: expected groups of equal size, of {} or more",
                               key, moe.experts, moe.groups, least));
  } else if (moe.top_groups > moe.groups || moe.top_k > moe.top_groups * each) {
    reader.Problem(fmt::format(
        "num_experts_per_tok {}: topk_group {} of n_group {} have {} experts together", moe.top_k,
        moe.top_groups, moe.groups, std::min(moe.top_groups, moe.groups) * each));
  }
}

void WriteRoutedExperts(const HfConfig& config, Json& json) {
  const MoeSpec& moe = config.moe;
  json.erase("num_local_experts");
  json["n_routed_experts"] = moe.experts;
  json["num_experts_per_tok"] = moe.top_k;
  json["moe_intermediate_size"] = moe.width;
  json["n_shared_experts"] = moe.shared_width / moe.width;
  json["n_group"] = moe.groups;
  json["topk_group"] = moe.top_groups;
  json["norm_topk_prob"] = moe.renormalize;
  json["routed_scaling_factor"] = moe.scale;
  json["first_k_dense_replace"] =
      std::count(config.dense_ffn.begin(), config.dense_ffn.end(), true);
}

void ReadExtraLayers(ConfigReader& reader, HfConfig& config, int64_t fallback) {
  config.extra_layers = reader.Int("num_nextn_predict_layers", fallback);
  if (config.extra_layers < 0 || config.extra_layers > kMostLayers)
    reader.Wrong("num_nextn_predict_layers", "a number of layers", config.extra_layers);
}

void ReadLatentAttention(ConfigReader& reader, HfConfig& config, const LatentSpec& fallback) {
  const auto dims = [&](const char* key, int64_t usual) {
    return reader.Positive(key, usual, kMostHidden);
  };
  LatentSpec& latent = config.latent;
  const bool null = reader.Find("q_lora_rank") == nullptr && reader.json().contains("q_lora_rank");
  latent.q_rank = null ? 0 : dims("q_lora_rank", fallback.q_rank);
  latent.kv_rank = dims("kv_lora_rank", fallback.kv_rank);
  latent.plain_dims = dims("qk_nope_head_dim", fallback.plain_dims);
  latent.turned_dims = dims("qk_rope_head_dim", fallback.turned_dims);
  latent.value_dims = dims("v_head_dim", fallback.value_dims);
  if (reader.Find("head_dim") != nullptr && config.head_dim != latent.turned_dims) {
    reader.Wrong("head_dim",
                 fmt::format("qk_rope_head_dim ({}) or no such key", latent.turned_dims),
                 config.head_dim);
  }
  // Even, as fused attention has heads.
  config.head_dim = (std::max(latent.key_dims(), latent.value_dims) + 1) / 2 * 2;
  if (config.num_key_value_heads != config.num_attention_heads) {
    reader.Problem(
        fmt::format("num_key_value_heads {}: expected num_attention_heads ({}), as many "
                    "as there are with latent attention",
                    config.num_key_value_heads, config.num_attention_heads));
  }
  if (latent.turned_dims % 2 != 0) {
    reader.Wrong("qk_rope_head_dim", "an even number", latent.turned_dims);
    return;
  }
  ReadMainRope(reader, config);
  ReadAttentionBias(reader, config);
}

void WriteLatentAttention(const HfConfig& config, Json& json) {
  const LatentSpec& latent = config.latent;
  json["q_lora_rank"] = latent.q_rank > 0 ? Json(latent.q_rank) : Json();
  json["kv_lora_rank"] = latent.kv_rank;
  json["qk_nope_head_dim"] = latent.plain_dims;
  json["qk_rope_head_dim"] = latent.turned_dims;
  json["v_head_dim"] = latent.value_dims;
  json.erase("head_dim");
  WriteRopeAndBias(config, json);
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
