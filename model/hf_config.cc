#include "model/hf_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/text.h"

namespace keel::model {

namespace {

// Far above any model that there is, and far below where sizes overflow.
constexpr int64_t kMostLayers = 10'000;
constexpr int64_t kMostHeads = 1 << 16;
constexpr int64_t kMostHidden = 1 << 20;
constexpr int64_t kMostIntermediate = 1 << 23;
constexpr int64_t kMostVocabulary = 1 << 26;
constexpr int64_t kMostPositions = int64_t{1} << 40;
constexpr int64_t kMostParameters = int64_t{1} << 50;

// Collects every problem instead of stopping at the first.
class Reader {
 public:
  Reader(const Json& json, std::string_view where) : json_(json), where_(where) {}

  const Json* Find(std::string_view key) const {
    const auto it = json_.find(key);
    return it == json_.end() || it->is_null() ? nullptr : &*it;
  }
  int64_t Int(std::string_view key, std::optional<int64_t> fallback) {
    const Json* value = Find(key);
    if (value == nullptr && !fallback) Missing(key, "an integer");
    if (value == nullptr) return fallback.value_or(0);
    if (value->is_number_integer()) return value->get<int64_t>();
    Wrong(key, "an integer", *value);
    return fallback.value_or(0);
  }
  // A number above `most` is refused before anything is counted out or allocated by it.
  int64_t Positive(std::string_view key, std::optional<int64_t> fallback, int64_t most) {
    const int64_t value = Int(key, fallback);
    if (Find(key) != nullptr && Find(key)->is_number_integer() && (value < 1 || value > most)) {
      Wrong(key, fmt::format("an integer from 1 to {}", most), *Find(key));
    }
    return value;
  }
  double Number(std::string_view key, double fallback) {
    const Json* value = Find(key);
    if (value == nullptr) return fallback;
    if (value->is_number()) return value->get<double>();
    Wrong(key, "a number", *value);
    return fallback;
  }
  // Beyond these bounds the first forward is full of NaN, or another model.
  double Within(double least, double most, std::string_view key, double fallback) {
    const double value = Number(key, fallback);
    if (value >= least && value <= most) return value;
    Problem(fmt::format("{}: expected a number from {} to {}, found {}", key, least, most, value));
    return fallback;
  }
  bool Bool(std::string_view key, bool fallback) {
    const Json* value = Find(key);
    if (value == nullptr) return fallback;
    if (value->is_boolean()) return value->get<bool>();
    Wrong(key, "true or false", *value);
    return fallback;
  }
  std::string String(std::string_view key, std::string fallback) {
    const Json* value = Find(key);
    if (value == nullptr) return fallback;
    if (value->is_string()) return value->get<std::string>();
    Wrong(key, "a string", *value);
    return fallback;
  }
  void Wrong(std::string_view key, std::string_view expected, const Json& found) {
    Problem(fmt::format("{}: expected {}, found {}", key, expected,
                        Printable(found.dump(-1, ' ', false, Json::error_handler_t::replace))));
  }
  void Missing(std::string_view key, std::string_view expected) {
    Problem(fmt::format("{}: missing, expected {}", key, expected));
  }
  void Problem(std::string text) { problems_.push_back(std::move(text)); }
  Status status() const {
    if (problems_.empty()) return Status::Ok();
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: {}", where_, fmt::join(problems_, "; ")));
  }

 private:
  const Json& json_;
  std::string_view where_;
  std::vector<std::string> problems_;
};

// All of a head's dims are rotated.
void CheckRotated(Reader& in, Reader& problems) {
  const double rotated = in.Number("partial_rotary_factor", 1);
  if (rotated == 1) return;
  problems.Problem(fmt::format("partial_rotary_factor: {} is not supported, expected 1", rotated));
}

void ReadRope(Reader& reader, HfConfig& config) {
  // v5 writes rope_parameters {rope_type, rope_theta, ...}; v4 rope_theta and rope_scaling
  // {rope_type or type, ...}.
  config.rope_theta = reader.Within(1, 1e30, "rope_theta", 10000);
  CheckRotated(reader, reader);
  const Json* parameters = reader.Find("rope_parameters");
  const Json* const scaling = reader.Find("rope_scaling");
  // transformers takes the first that it was taught to know, which differs from version to version.
  if (parameters != nullptr && scaling != nullptr && *parameters != *scaling) {
    reader.Problem("rope_parameters and rope_scaling are both given, and differ: leave one out");
    return;
  }
  if (parameters == nullptr) parameters = scaling;
  if (parameters == nullptr) return;
  if (!parameters->is_object()) {
    reader.Wrong("rope_parameters", "a map", *parameters);
    return;
  }
  for (const auto& [key, value] : parameters->items()) {
    if (value.is_object()) {
      reader.Problem(fmt::format(
          "rope_parameters: \"{}\": one for each kind of layer is not supported", Printable(key)));
    }
  }
  Reader rope(*parameters, "");
  CheckRotated(rope, reader);
  config.rope_theta = rope.Within(1, 1e30, "rope_theta", config.rope_theta);
  const std::string type = rope.String("rope_type", rope.String("type", "default"));
  if (type == "llama3") {
    for (const char* key :
         {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"})
      if (rope.Find(key) == nullptr) rope.Missing(key, "a number, for rope_type llama3");
    Llama3RopeScaling llama3;
    llama3.factor = rope.Number("factor", llama3.factor);
    llama3.low_freq_factor = rope.Number("low_freq_factor", llama3.low_freq_factor);
    llama3.high_freq_factor = rope.Number("high_freq_factor", llama3.high_freq_factor);
    llama3.original_max_position_embeddings =
        rope.Positive("original_max_position_embeddings", llama3.original_max_position_embeddings,
                      kMostPositions);
    if (llama3.factor <= 0 || llama3.high_freq_factor <= llama3.low_freq_factor) {
      reader.Problem("rope_scaling: expected factor > 0 and high_freq_factor > low_freq_factor");
    }
    config.rope_scaling = llama3;
  } else if (type != "default") {
    reader.Problem(fmt::format("rope_type: \"{}\" is not supported, expected default or llama3",
                               Printable(type)));
  }
  if (!rope.status().ok()) reader.Problem("rope_parameters" + rope.status().message());
}

std::vector<int64_t> ReadEosTokenIds(Reader& reader) {
  const Json* eos = reader.Find("eos_token_id");
  if (eos == nullptr) return {};
  const Json list = eos->is_array() ? *eos : Json::array({*eos});
  std::vector<int64_t> ids;
  for (const Json& id : list) {
    if (id.is_number_integer()) {
      ids.push_back(id.get<int64_t>());
    } else {
      reader.Wrong("eos_token_id", "an integer, a list of integers or null", *eos);
      return {};
    }
  }
  return ids;
}

Status NotAMap(std::string_view where) {
  return Status(StatusCode::kInvalidData,
                fmt::format("{}: expected a map of Hugging Face keys", where));
}

}  // namespace

Status CheckSpecialIds(const Json& json, int64_t vocab_size, std::string_view where) {
  if (!json.is_object()) return NotAMap(where);
  Reader reader(json, where);
  const auto check = [&](const char* key, int64_t id) {
    if (id >= 0 && id < vocab_size) return;
    reader.Problem(fmt::format(
        "{}: {} is outside the vocabulary of {}: give the id of the model's token, or leave it out",
        key, id, vocab_size));
  };
  for (const int64_t id : ReadEosTokenIds(reader)) check("eos_token_id", id);
  if (reader.Find("bos_token_id") != nullptr) check("bos_token_id", reader.Int("bos_token_id", 0));
  if (const int64_t pad = reader.Int("pad_token_id", -1); pad != -1) check("pad_token_id", pad);
  return reader.status();
}

Result<std::vector<int64_t>> ParseEosTokenIds(const Json& json, std::string_view where) {
  if (!json.is_object()) return NotAMap(where);
  Reader reader(json, where);
  std::vector<int64_t> ids = ReadEosTokenIds(reader);
  KEEL_RETURN_IF_ERROR(reader.status());
  return ids;
}

Result<HfConfig> ParseHfConfig(const Json& json, std::string_view where) {
  if (!json.is_object()) return NotAMap(where);
  Reader reader(json, where);
  HfConfig config;
  const std::string type = reader.String("model_type", "");
  if (type == "llama") {
    config.family = Family::kLlama;
  } else if (type == "qwen2") {
    config.family = Family::kQwen2;
  } else if (type == "qwen3") {
    config.family = Family::kQwen3;
  } else {
    reader.Problem(
        fmt::format("model_type: expected llama, qwen2 or qwen3, found \"{}\"", Printable(type)));
  }
  config.hidden_size = reader.Positive("hidden_size", std::nullopt, kMostHidden);
  config.intermediate_size = reader.Positive("intermediate_size", std::nullopt, kMostIntermediate);
  config.num_hidden_layers = reader.Positive("num_hidden_layers", std::nullopt, kMostLayers);
  config.num_attention_heads = reader.Positive("num_attention_heads", std::nullopt, kMostHeads);
  config.num_key_value_heads =
      reader.Positive("num_key_value_heads", config.num_attention_heads, kMostHeads);
  config.vocab_size = reader.Positive("vocab_size", std::nullopt, kMostVocabulary);
  config.max_position_embeddings = reader.Positive("max_position_embeddings", 2048, kMostPositions);
  const int64_t heads = std::max<int64_t>(1, config.num_attention_heads);
  const int64_t default_head_dim =
      config.family == Family::kQwen3 ? 128 : config.hidden_size / heads;
  if (reader.Find("head_dim") == nullptr && config.family != Family::kQwen3 &&
      config.hidden_size % heads != 0) {
    reader.Problem(
        fmt::format("hidden_size {} is not a multiple of num_attention_heads {}: give head_dim",
                    config.hidden_size, heads));
  }
  config.head_dim = reader.Positive("head_dim", default_head_dim, kMostHeads);
  config.rms_norm_eps = reader.Within(0, 1, "rms_norm_eps", 1e-6);
  config.tie_word_embeddings = reader.Bool("tie_word_embeddings", false);
  config.initializer_range = reader.Within(0, 1e3, "initializer_range", 0.02);
  const bool bias = reader.Bool("attention_bias", false);
  config.attention_bias = config.family == Family::kQwen2 || bias;
  config.output_bias = config.family != Family::kQwen2 && bias;
  ReadRope(reader, config);

  if (config.num_attention_heads > 0 && config.num_key_value_heads > 0 &&
      config.num_attention_heads % config.num_key_value_heads != 0) {
    reader.Problem(fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}",
                               config.num_attention_heads, config.num_key_value_heads));
  }
  if (config.head_dim % 2 != 0) reader.Problem(fmt::format("head_dim {} is odd", config.head_dim));
  const std::string activation = reader.String("hidden_act", "silu");
  if (activation != "silu") {
    reader.Problem(
        fmt::format("hidden_act: \"{}\" is not supported, expected silu", Printable(activation)));
  }
  if (reader.Bool("mlp_bias", false)) reader.Problem("mlp_bias: true is not supported");
  if (reader.Bool("use_sliding_window", false))
    reader.Problem("use_sliding_window: true is not supported");

  const std::string dtype = reader.String("dtype", reader.String("torch_dtype", ""));
  if (dtype == "float32") config.dtype = DType::kF32;
  if (dtype == "bfloat16") config.dtype = DType::kBF16;
  if (dtype == "float16") config.dtype = DType::kF16;
  if (reader.Find("bos_token_id") != nullptr) config.bos_token_id = reader.Int("bos_token_id", 0);
  config.eos_token_ids = ReadEosTokenIds(reader);
  KEEL_RETURN_IF_ERROR(reader.status());
  // In floating point, which does not overflow.
  const double width = static_cast<double>(config.hidden_size);
  const double attention =
      static_cast<double>(config.num_attention_heads) * static_cast<double>(config.head_dim);
  const double parameters =
      static_cast<double>(config.num_hidden_layers) * width *
          (4 * attention + 3 * static_cast<double>(config.intermediate_size)) +
      2 * width * static_cast<double>(config.vocab_size);
  if (parameters > static_cast<double>(kMostParameters)) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: describes a model of some {:.1e} parameters, more than {:.1e}: "
                              "one of its sizes is wrong",
                              where, parameters, static_cast<double>(kMostParameters)));
  }
  return config;
}

int64_t HfConfig::NumParameters() const {
  const int64_t q = num_attention_heads * head_dim;
  const int64_t kv = num_key_value_heads * head_dim;
  int64_t layer = hidden_size * (q + 2 * kv) + q * hidden_size +
                  3 * hidden_size * intermediate_size + 2 * hidden_size;
  if (attention_bias) layer += q + 2 * kv;
  if (output_bias) layer += hidden_size;
  if (qk_norm()) layer += 2 * head_dim;
  return num_hidden_layers * layer + hidden_size +
         vocab_size * hidden_size * (tie_word_embeddings ? 1 : 2);
}

std::string HfConfig::Digest() const {
  const char* family_name = family == Family::kLlama   ? "llama"
                            : family == Family::kQwen2 ? "qwen2"
                                                       : "qwen3";
  std::string rope = fmt::format("theta {}", rope_theta);
  if (rope_scaling) {
    rope +=
        fmt::format(" llama3 {} {} {} {}", rope_scaling->factor, rope_scaling->low_freq_factor,
                    rope_scaling->high_freq_factor, rope_scaling->original_max_position_embeddings);
  }
  return fmt::format(
      "{} hidden {} ffn {} layers {} heads {} kv {} head_dim {} vocab {} eps {} {}{}{}",
      family_name, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
      num_key_value_heads, head_dim, vocab_size, rms_norm_eps, rope,
      output_bias ? " attention_bias" : "", tie_word_embeddings ? " tied" : "");
}

Json ToHfJson(const HfConfig& config, DType dtype, const Json* source) {
  Json json = source != nullptr ? *source : Json::object();
  const char* names[] = {"llama", "qwen2", "qwen3"};
  const char* classes[] = {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"};
  const auto family = static_cast<size_t>(config.family);
  json["architectures"] = Json::array({classes[family]});
  json["model_type"] = names[family];
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["num_hidden_layers"] = config.num_hidden_layers;
  json["num_attention_heads"] = config.num_attention_heads;
  json["num_key_value_heads"] = config.num_key_value_heads;
  json["head_dim"] = config.head_dim;
  json["vocab_size"] = config.vocab_size;
  json["max_position_embeddings"] = config.max_position_embeddings;
  json["rms_norm_eps"] = config.rms_norm_eps;
  json["hidden_act"] = "silu";
  json["initializer_range"] = config.initializer_range;
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  json["attention_bias"] = config.output_bias;
  json["attention_dropout"] = 0.0;
  json["use_cache"] = true;
  json["torch_dtype"] = dtype == DType::kBF16 ? "bfloat16" : "float32";
  json.erase("dtype");
  json.erase("rope_parameters");
  json["rope_theta"] = config.rope_theta;
  json["rope_scaling"] = nullptr;
  if (config.rope_scaling) {
    json["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", config.rope_scaling->factor},
                            {"low_freq_factor", config.rope_scaling->low_freq_factor},
                            {"high_freq_factor", config.rope_scaling->high_freq_factor},
                            {"original_max_position_embeddings",
                             config.rope_scaling->original_max_position_embeddings}};
  }
  if (config.bos_token_id) json["bos_token_id"] = *config.bos_token_id;
  if (config.eos_token_ids.size() == 1) json["eos_token_id"] = config.eos_token_ids[0];
  if (config.eos_token_ids.size() > 1) json["eos_token_id"] = config.eos_token_ids;
  return json;
}

}  // namespace keel::model
