// The families of GPT-2, GPT-BigCode and GPT-Neo, whose positions are learned.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "model/config/family_table.h"

namespace keel::model {

namespace {

void HaveBiases(HfConfig& config, bool of_qkv) {
  config.attention_bias = of_qkv;
  config.output_bias = config.mlp_bias = true;
}

void ReadGptKeys(ConfigReader& reader, HfConfig& config) {
  HaveBiases(config, true);
  RefuseRotation(reader, config);
  if (!reader.Bool("scale_attn_weights", true)) config.attention_multiplier = 1;
  if (reader.Bool("add_cross_attention", false))
    reader.Problem("add_cross_attention: expected false: Keel has decoders alone");
  PassOverGptHeads(reader);
  PassOver(reader, {"n_ctx", "reorder_and_upcast_attn", "task_specific_params"});
}

void ReadGpt2(ConfigReader& reader, HfConfig& config) {
  ReadGptKeys(reader, config);
  RefuseFewerKeyHeads(reader, config);
  config.scores_by_layer = reader.Bool("scale_attn_by_inverse_layer_idx", false);
}

void WriteGptKeys(const HfConfig& config, Json& json) {
  EraseHeadKeys(json);
  json["residual_dropout"] = config.residual_dropout;
  json["scale_attn_weights"] = config.attention_multiplier == 0;
}

void WriteGpt2(const HfConfig& config, Json& json) {
  WriteGptKeys(config, json);
  json["scale_attn_by_inverse_layer_idx"] = config.scores_by_layer;
}

void ReadBigCode(ConfigReader& reader, HfConfig& config) {
  ReadGptKeys(reader, config);
  RefuseOtherHeadDim(reader, config);
  const bool one = reader.Bool("multi_query", true);
  config.qkv_by_head = !one;
  const int64_t heads = one ? 1 : config.num_attention_heads;
  if (reader.Find("num_key_value_heads") != nullptr && config.num_key_value_heads != heads)
    reader.Problem(fmt::format("num_key_value_heads: expected {}, as multi_query says", heads));
  config.num_key_value_heads = heads;
  PassOver(reader, {"attention_softmax_in_fp32", "scale_attention_softmax_in_fp32",
                    "inference_runner", "pad_key_length", "pre_allocate_kv_cache",
                    "validate_runner_input", "max_sequence_length", "max_batch_size"});
}

void WriteBigCode(const HfConfig& config, Json& json) {
  WriteGptKeys(config, json);
  json["multi_query"] = !config.qkv_by_head;
}

constexpr KeyName kGptNeoKeys[] = {{"num_heads", "num_attention_heads"},
                                   {"num_layers", "num_hidden_layers"},
                                   {"resid_dropout", "residual_dropout"}};

// attention_types: [[[kind, ...], times], ...], the kinds so many times over; none where they are
// more than `layers`, whatever the two numbers say.
std::vector<std::string> KindsOf(const Json& types, int64_t layers) {
  std::vector<std::string> kinds;
  if (!types.is_array()) return {};
  for (const Json& run : types) {
    if (!run.is_array() || run.size() != 2 || !run[0].is_array() || !run[1].is_number_integer())
      return {};
    for (int64_t time = 0; time < run[1].get<int64_t>(); ++time) {
      for (const Json& kind : run[0]) {
        if (!kind.is_string() || std::ssize(kinds) >= layers) return {};
        kinds.push_back(kind.get<std::string>());
      }
      if (run[0].empty()) return {};
    }
  }
  return kinds;
}

void ReadGptNeo(ConfigReader& reader, HfConfig& config) {
  HaveBiases(config, false);
  RefuseFewerKeyHeads(reader, config);
  RefuseRotation(reader, config);
  config.attention_multiplier = 1;
  config.sliding_window = reader.Positive("window_size", 256, kMostPositions);
  const Json* types = reader.Find("attention_types");
  const Json fallback = Json::array({Json::array({Json::array({"global", "local"}), 12})});
  const std::vector<std::string> kinds = KindsOf(types != nullptr ? *types : fallback,
                                                 std::min(config.num_hidden_layers, kMostLayers));
  bool known = std::ssize(kinds) == config.num_hidden_layers;
  for (const std::string& kind : kinds) {
    known &= kind == "local" || kind == "global";
    config.windowed.push_back(kind == "local");
  }
  if (const Json* layers = reader.Find("attention_layers"); known && layers != nullptr) {
    if (*layers != Json(kinds)) {
      reader.Problem(fmt::format("attention_layers: {}: expected what attention_types says ({})",
                                 Shown(*layers), fmt::join(kinds, ", ")));
    }
  }
  if (reader.Find("layer_types") != nullptr)
    reader.Problem("layer_types: expected no such key: attention_types says it");
  if (!known) {
    reader.Problem(fmt::format(
        "attention_types: {}: expected [[[\"global\", \"local\"], 12]] or the like, lists of these "
        "two kinds and how often each follows itself, for {} ({})",
        types != nullptr ? Shown(*types) : "left out, which says 24 layers",
        reader.InFile("num_hidden_layers"), config.num_hidden_layers));
  }
  PassOverGptHeads(reader);
  PassOver(reader, {"classifier_dropout"});
}

void WriteGptNeo(const HfConfig& config, Json& json) {
  EraseHeadKeys(json);
  json["residual_dropout"] = config.residual_dropout;
  json["window_size"] = config.sliding_window;
  Json types = Json::array();
  Json layers = Json::array();
  for (const bool windowed : config.windowed) {
    const char* const kind = windowed ? "local" : "global";
    types.push_back(Json::array({Json::array({kind}), 1}));
    layers.push_back(kind);
  }
  json["attention_types"] = std::move(types);
  json["attention_layers"] = std::move(layers);
}

// What GPT-2 and GPT-BigCode have in common.
constexpr FamilyTable GptTable(Family family, std::string_view model_type,
                               std::string_view model_class) {
  return {.family = family,
          .model_type = model_type,
          .model_class = model_class,
          .positions = 1024,
          .block = {.norm_kind = NormKind::kLayer,
                    .norm_bias = true,
                    .rope = RopeChoice::kNone,
                    .qkv = QkvTensors::kJoined,
                    .ffn = FfnKind::kPlain},
          .first_position = 0,
          .keeps_masks = true,
          .keys = kGpt2Keys,
          .tied = true,
          .eps_key = "layer_norm_epsilon",
          .eps = 1e-5,
          .dropout = 0.1,
          .width_key = "n_inner",
          .width_times = 4,
          .activation_key = "activation_function"};
}

}  // namespace

// Radford et al. 2019: norms by mean and variance before attention and feed-forward, biases on all
// matrices, whose rows in files are of inputs; q, k and v stand in one, one behind the other.
constinit const FamilyTable kGpt2Family = [] {
  FamilyTable table = GptTable(Family::kGpt2, "gpt2", "GPT2LMHeadModel");
  table.block.input_rows = true;
  table.activation = "gelu_new";
  table.read = ReadGpt2;
  table.write = WriteGpt2;
  return table;
}();

// Ben Allal et al. 2023, Li et al. 2023: as GPT-2 with matrices as most have them, and one key and
// value head for all, or q, k and v of each head together.
constinit const FamilyTable kGptBigCodeFamily = [] {
  FamilyTable table = GptTable(Family::kGptBigCode, "gpt_bigcode", "GPTBigCodeForCausalLM");
  table.activation = "gelu_pytorch_tanh";
  table.read = ReadBigCode;
  table.write = WriteBigCode;
  return table;
}();

// Black et al. 2021: as GPT-2 with matrices as most have them and no biases on q, k and v, scores
// that are not divided, and every second layer with a window.
constinit const FamilyTable kGptNeoFamily = {
    .family = Family::kGptNeo,
    .model_type = "gpt_neo",
    .model_class = "GPTNeoForCausalLM",
    .block = {.norm_kind = NormKind::kLayer,
              .norm_bias = true,
              .rope = RopeChoice::kNone,
              .ffn = FfnKind::kPlain},
    .first_position = 0,
    .keeps_masks = true,
    .keys = kGptNeoKeys,
    .tied = true,
    .eps_key = "layer_norm_epsilon",
    .eps = 1e-5,
    .width_times = 4,
    .activation_key = "activation_function",
    .activation = "gelu_new",
    .read = ReadGptNeo,
    .write = WriteGptNeo,
};

}  // namespace keel::model
