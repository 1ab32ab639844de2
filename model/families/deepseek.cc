// The families with DeepSeek's multi-head latent attention (2024, 2.1).

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "model/config/family_table.h"

namespace keel::model {

namespace {

constexpr LatentSpec kLatent = {
    .q_rank = 1536, .kv_rank = 512, .plain_dims = 128, .turned_dims = 64, .value_dims = 128};

// What the code that DeepSeek publishes goes by, and transformers' classes do not.
void ExpectKey(ConfigReader& reader, std::string_view key, const Json& expected) {
  const Json* const found = reader.Find(key);
  if (found != nullptr && *found != expected)
    reader.Wrong(key, expected.dump() + " or no such key", *found);
}

void ReadTurns(ConfigReader& reader, HfConfig& config) {
  // Written as null it is false.
  config.rope.interleaved =
      reader.Bool("rope_interleave", !reader.json().contains("rope_interleave"));
}

// Of the families with DeepSeek-V3's experts.
void WriteV3(const HfConfig& config, Json& json) {
  WriteLatentAttention(config, json);
  json["rope_interleave"] = config.rope.interleaved;
  json["num_nextn_predict_layers"] = 0;
  WriteRoutedExperts(config, json);
}

// The router of DeepSeek-V2: a softmax, and no bias.
void ReadV2Router(ConfigReader& reader, HfConfig& config) {
  MoeSpec& moe = config.moe;
  moe.score = RouterScore::kSoftmax;
  moe.choice_bias = false;
  if (moe.renormalize)
    reader.Wrong("norm_topk_prob", "false, as transformers computes it whatever it is", true);
  const std::string method = reader.String("topk_method", "greedy");
  if (method == "greedy") return;
  if (method != "group_limited_greedy")
    reader.Wrong("topk_method", "greedy or group_limited_greedy", method);
  for (const char* key : {"n_group", "topk_group"})
    if (reader.Find(key) == nullptr) reader.Missing(key, "a number, for this topk_method");
}

// mlp_layer_types, by which transformers goes here; first_k_dense_replace may say the same.
void ReadDenseLayers(ConfigReader& reader, HfConfig& config) {
  const auto layers =
      static_cast<size_t>(std::clamp<int64_t>(config.num_hidden_layers, 0, kMostLayers));
  std::vector<bool> dense(layers, false);
  if (layers > 0) dense[0] = true;
  if (const Json* const types = reader.Find("mlp_layer_types"); types != nullptr) {
    const auto known = [](const Json& type) { return type == "dense" || type == "sparse"; };
    if (!types->is_array() || types->size() != layers ||
        !std::all_of(types->begin(), types->end(), known)) {
      reader.Wrong("mlp_layer_types",
                   fmt::format("dense or sparse for each of num_hidden_layers ({})", layers),
                   *types);
      return;
    }
    for (size_t i = 0; i < layers; ++i) dense[i] = (*types)[i] == "dense";
  }
  std::vector<bool> said = config.dense_ffn;
  said.resize(layers, false);
  if (reader.Find("first_k_dense_replace") != nullptr && said != dense) {
    reader.Problem(
        "first_k_dense_replace: the dense layers are others than mlp_layer_types has, or the "
        "first one where it is left out");
  }
  config.dense_ffn = std::find(dense.begin(), dense.end(), true) != dense.end()
                         ? std::move(dense)
                         : std::vector<bool>();
}

}  // namespace

// DeepSeek-AI 2024: DeepSeek-V2, V2-Lite, Coder-V2.
constinit const FamilyTable kDeepseekV2Family = {
    .family = Family::kDeepseekV2,
    .model_type = "deepseek_v2",
    .model_class = "DeepseekV2ForCausalLM",
    .moe_names = {.shared = "mlp.shared_experts"},
    .head_dim = kLatent.turned_dims,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadLatentAttention(reader, config, kLatent);
          ExpectKey(reader, "rope_interleave", true);
          config.rope.interleaved = true;
          ReadRoutedExperts(
              reader, config,
              {.experts = 64, .width = 1407, .group_by_best = true, .shared_width = 2}, 0);
          ReadV2Router(reader, config);
          ExpectKey(reader, "scoring_func", "softmax");
          ExpectKey(reader, "moe_layer_freq", 1);
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteLatentAttention(config, json);
          WriteRoutedExperts(config, json);
          const bool grouped = config.moe.top_groups < config.moe.groups;
          json["topk_method"] = grouped ? "group_limited_greedy" : "greedy";
        },
};

// DeepSeek-AI 2024: DeepSeek-V3, R1; Moonlight. Published files have one layer more, which predicts
// a further token; transformers leaves it out, and so does hf_tensors.cc.
constinit const FamilyTable kDeepseekV3Family = {
    .family = Family::kDeepseekV3,
    .model_type = "deepseek_v3",
    .model_class = "DeepseekV3ForCausalLM",
    .positions = 4096,
    .moe_names = {.shared = "mlp.shared_experts"},
    .head_dim = kLatent.turned_dims,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadLatentAttention(reader, config, kLatent);
          ReadTurns(reader, config);
          ReadExtraLayers(reader, config, 1);
          ReadRoutedExperts(reader, config,
                            {.experts = 256,
                             .top_k = 8,
                             .width = 2048,
                             .groups = 8,
                             .top_groups = 4,
                             .renormalize = true,
                             .scale = 2.5,
                             .shared_width = 1},
                            3);
          ExpectKey(reader, "topk_method", "noaux_tc");
          ExpectKey(reader, "scoring_func", "sigmoid");
          ExpectKey(reader, "moe_layer_freq", 1);
        },
    .write = WriteV3,
};

// Z.ai 2026: GLM-4.7-Flash.
constinit const FamilyTable kGlm4MoeLiteFamily = {
    .family = Family::kGlm4MoeLite,
    .model_type = "glm4_moe_lite",
    .model_class = "Glm4MoeLiteForCausalLM",
    .positions = 202'752,
    .moe_names = {.shared = "mlp.shared_experts"},
    .head_dim = kLatent.turned_dims,
    .eps = 1e-5,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadLatentAttention(reader, config,
                              {.q_rank = 768,
                               .kv_rank = 512,
                               .plain_dims = 192,
                               .turned_dims = 64,
                               .value_dims = 256});
          ReadTurns(reader, config);
          if (reader.json().value("rope_interleave", Json(true)).is_null())
            reader.Wrong("rope_interleave", "true or false", nullptr);
          ReadExtraLayers(reader, config, 0);
          ReadRoutedExperts(reader, config,
                            {.experts = 64,
                             .top_k = 4,
                             .width = 1536,
                             .renormalize = true,
                             .scale = 1.8,
                             .shared_width = 1},
                            1);
          ReadDenseLayers(reader, config);
          ExpectKey(reader, "moe_layer_freq", 1);
          ExpectKey(reader, "topk_method", "noaux_tc");
          ExpectKey(reader, "scoring_func", "sigmoid");
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteV3(config, json);
          json.erase("first_k_dense_replace");
          Json types = Json::array();
          for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
            types.push_back(config.Layer(layer).ffn == FfnKind::kMoe ? "sparse" : "dense");
          json["mlp_layer_types"] = types;
        },
};

// Tencent 2026: Youtu-LLM. No experts.
constinit const FamilyTable kYoutuFamily = {
    .family = Family::kYoutu,
    .model_type = "youtu",
    .model_class = "YoutuForCausalLM",
    .positions = 131'072,
    .tied = true,
    .head_dim = kLatent.turned_dims,
    .read =
        [](ConfigReader& reader, HfConfig& config) {
          ReadLatentAttention(reader, config, kLatent);
          ReadTurns(reader, config);
          // As transformers draws a new model.
          if (reader.Find("initializer_range") == nullptr) {
            config.initializer_range =
                2 / std::sqrt(5.0 * static_cast<double>(std::max<int64_t>(1, config.hidden_size)));
          }
          config.embedding_range = reader.Within(0, 1e3, "embedding_initializer_range", 0);
          if (config.embedding_range == 0) config.embedding_range = 2 * config.initializer_range;
        },
    .write =
        [](const HfConfig& config, Json& json) {
          WriteLatentAttention(config, json);
          json["rope_interleave"] = config.rope.interleaved;
          json["embedding_initializer_range"] = config.embedding_range;
        },
};

}  // namespace keel::model
