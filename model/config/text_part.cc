#include "model/config/text_part.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "common/text.h"
#include "model/config/config_reader.h"
#include "model/config/family_table.h"

namespace keel::model {

namespace {

// What transformers' class of a whole makes of its text part. Each of these computes a text's
// logits as its text model's class does: the vision tower's results take the place of image tokens'
// embeddings, and that is all.
struct Whole {
  std::string_view model_type;
  std::string_view text_type;  // where text_config does not say it
  bool text_type_alone;        // its text_config is always read as that type
  bool tied;                   // tie_word_embeddings, where the file does not say it
  bool tied_by_text;           // or text_config's, where the file's is not true
  // Its text part has a model_type of its own, which is text_type's model with a rotation by three
  // positions of each token; those of a text are the same, so that it turns as text_type's.
  std::string_view turned_type = {};
  std::string_view turned_defaults = {};  // where they are not those of text_type
  bool flat = false;                      // published files have the text's keys beside the others
};
// Of Qwen2-VL and Qwen2.5-VL.
constexpr std::string_view kQwen2VlDefaults = R"({"vocab_size": 152064, "hidden_size": 8192,
    "intermediate_size": 29568, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "max_position_embeddings": 32768, "max_window_layers": 80,
    "rms_norm_eps": 1e-5, "rope_theta": 1e6, "bos_token_id": 151643, "eos_token_id": 151645})";
constexpr std::string_view kQwen3VlDefaults = R"({"max_position_embeddings": 128000,
    "rope_theta": 5e5})";
constexpr Whole kWholes[] = {
    {"gemma3", "gemma3_text", true, true, false},
    {"mistral3", "mistral", false, true, false},
    {"llava", "llama", false, false, true},
    {"llava_next", "llama", false, false, false},
    {"llava_onevision", "qwen2", false, false, true},
    {"internvl", "qwen2", false, true, false},
    {"qwen2_vl", "qwen2", true, false, true, "qwen2_vl_text", kQwen2VlDefaults, true},
    {"qwen2_5_vl", "qwen2", true, false, true, "qwen2_5_vl_text", kQwen2VlDefaults, true},
    {"qwen3_vl", "qwen3", true, false, false, "qwen3_vl_text", kQwen3VlDefaults},
    {"qwen3_5", "qwen3_5_text", true, false, false, "qwen3_5_text"},
    {"qwen3_5_moe", "qwen3_5_moe_text", true, false, false, "qwen3_5_moe_text"},
};

// Keys that count for the text part where the whole says them: of generation, what its weights are
// in, and two that ParseHfConfig is to refuse wherever they stand.
constexpr std::string_view kOfTheWhole[] = {
    "bos_token_id",        "dtype",      "eos_token_id", "pad_token_id", "per_layer_config",
    "quantization_config", "torch_dtype"};

const Json* FindValue(const Json& json, std::string_view key) {
  const auto it = json.find(key);
  return it == json.end() || it->is_null() ? nullptr : &*it;
}

std::string TextTypes() {
  std::vector<std::string_view> names;
  for (const FamilyTable& table : Families())
    if (!table.text_defaults.empty()) names.push_back(table.model_type);
  return fmt::format("{}", fmt::join(names, ", "));
}

// The family of the text part; null where the reader has a problem with it.
const FamilyTable* TextFamily(const Whole& whole, ConfigReader& text) {
  std::string type = text.String("model_type", std::string(whole.text_type));
  if (!whole.turned_type.empty() && (type == whole.turned_type || type == whole.model_type))
    type = whole.text_type;
  if (whole.text_type_alone && type != whole.text_type) {
    text.Problem(fmt::format("model_type: expected {} in a {}, found \"{}\"", whole.text_type,
                             whole.model_type, Printable(type)));
    return nullptr;
  }
  const FamilyTable* family = FindFamily(type);
  if (family != nullptr && !family->text_defaults.empty()) return family;
  text.Problem(fmt::format("model_type: expected one of {} as the text part of a {}, found \"{}\"",
                           TextTypes(), whole.model_type, Printable(type)));
  return nullptr;
}

// The keys of a text part that stand beside those of the others.
Json FlatText(const Json& json) {
  Json text = Json::object();
  for (const auto& [key, value] : json.items()) {
    const bool rotation = key == "rope_scaling" || key == "rope_parameters";
    const bool of_images =
        key.starts_with("image_") || key.starts_with("video_") || key.starts_with("vision_");
    if (key != "model_type" && !of_images && (rotation || !value.is_object())) text[key] = value;
  }
  return text;
}

// A rotation by three positions that are the same is one by any of them.
void TurnAsText(Json* text) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto map = text->find(key);
    if (map == text->end() || !map->is_object()) continue;
    for (const char* images : {"mrope_section", "mrope_interleaved"}) map->erase(images);
    for (const char* spelling : {"type", "rope_type"}) {
      const auto type = map->find(spelling);
      if (type != map->end() && *type == "mrope") *type = "default";
    }
  }
}

}  // namespace

std::string WholeNames() {
  std::vector<std::string_view> names;
  for (const Whole& whole : kWholes) names.push_back(whole.model_type);
  return fmt::format("{}", fmt::join(names, ", "));
}

Result<std::optional<TextPart>> TextPartOf(const Json& json, std::string_view where) {
  if (!json.is_object()) return std::optional<TextPart>();
  const Json* const type = FindValue(json, "model_type");
  const auto whole = std::find_if(std::begin(kWholes), std::end(kWholes), [&](const Whole& one) {
    return type != nullptr && *type == one.model_type;
  });
  if (whole == std::end(kWholes)) return std::optional<TextPart>();

  ConfigReader outer(json, where);
  const Json* inside = outer.Find("text_config");
  Json beside;
  if (inside == nullptr && whole->flat) inside = &(beside = FlatText(json));
  if (inside == nullptr || !inside->is_object()) {
    outer.Problem(fmt::format("text_config: expected a map of the text model's keys, found {}",
                              inside == nullptr ? "none" : Shown(*inside)));
    return outer.status();
  }
  const std::string where_inside = fmt::format("{}: text_config", where);
  ConfigReader text(*inside, where_inside);
  const FamilyTable* const family = TextFamily(*whole, text);
  if (family == nullptr) return text.status();
  // 1. Its own keys, and its class's defaults.
  TextPart part{std::string(whole->model_type), *inside, false};
  for (const std::string_view text_of : {whole->turned_defaults, family->text_defaults}) {
    const Json defaults = text_of.empty() ? Json::object() : Json::parse(text_of);
    for (const auto& [key, value] : defaults.items())
      if (!part.json.contains(key)) part.json[key] = value;
  }
  if (!whole->turned_type.empty()) TurnAsText(&part.json);
  part.json["model_type"] = family->model_type;
  part.json["architectures"] = Json::array({family->model_class});
  // 2. What the whole says. Its weights' type has two spellings, of which one counts.
  if (FindValue(json, "dtype") != nullptr || FindValue(json, "torch_dtype") != nullptr)
    for (const char* spelling : {"dtype", "torch_dtype"}) part.json.erase(spelling);
  for (const std::string_view key : kOfTheWhole)
    if (const Json* said = FindValue(json, key)) part.json[std::string(key)] = *said;
  const bool by_text = whole->tied_by_text && text.Bool("tie_word_embeddings", false);
  const bool said = outer.Find("tie_word_embeddings") != nullptr;
  part.json["tie_word_embeddings"] = outer.Bool("tie_word_embeddings", whole->tied) || by_text;
  part.tie_unsaid = !said && whole->tied;
  // 3. The whole's head is a matrix and nothing behind it.
  if (const Json* cap = text.Find("final_logit_softcapping")) {
    text.Problem(fmt::format(
        "final_logit_softcapping: {} is not supported in a {}, whose logits have none in "
        "transformers, expected null",
        Shown(*cap), whole->model_type));
  }
  KEEL_RETURN_IF_ERROR(outer.status());
  KEEL_RETURN_IF_ERROR(text.status());
  return std::optional(std::move(part));
}

}  // namespace keel::model
