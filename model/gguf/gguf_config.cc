#include "model/gguf/gguf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>
#include <string>
#include <utility>

#include "common/text.h"

namespace keel::model {

namespace {

struct FamilyNames {
  std::string_view gguf, model_type, architecture;
};
constexpr FamilyNames kFamilies[] = {{"llama", "llama", "LlamaForCausalLM"},
                                     {"qwen2", "qwen2", "Qwen2ForCausalLM"},
                                     {"qwen3", "qwen3", "Qwen3ForCausalLM"}};

const FamilyNames& NamesOf(GgufFamily family) { return kFamilies[static_cast<size_t>(family)]; }

const GgufTensor* FindTensor(const GgufFile& file, std::string_view name) {
  for (const GgufTensor& tensor : file.tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

// The keys of one architecture; what nobody has asked for in the end is not understood.
class Keys {
 public:
  Keys(const GgufMetadata& metadata, std::string_view architecture)
      : metadata_(metadata), prefix_(fmt::format("{}.", architecture)) {}

  std::string Name(std::string_view key) const { return prefix_ + std::string(key); }
  bool Has(std::string_view key) const { return metadata_.Find(Name(key)) != nullptr; }
  Result<int64_t> Int(std::string_view key, std::optional<int64_t> fallback = {}) {
    return metadata_.Int(Ask(key), fallback);
  }
  Result<double> Double(std::string_view key, std::optional<double> fallback = {}) {
    return metadata_.Double(Ask(key), fallback);
  }
  Result<std::string> String(std::string_view key, std::string fallback) {
    return metadata_.String(Ask(key), std::move(fallback));
  }
  // One number, or an array that has the same for every layer.
  Result<int64_t> SameInAllLayers(std::string_view key, std::optional<int64_t> fallback = {}) {
    const GgufValue* value = metadata_.Find(Name(key));
    if (value == nullptr || !value->is_array) return Int(key, fallback);
    KEEL_ASSIGN_OR_RETURN(const GgufValue* const numbers, metadata_.Integers(Ask(key)));
    for (int64_t i = 0; i < numbers->count; ++i) {
      if (numbers->Integer(i) == numbers->Integer(0)) continue;
      return Wrong(key, "differs from layer to layer, which Keel does not support");
    }
    if (numbers->count == 0 || !numbers->Integer(0)) return Wrong(key, "expected an integer");
    return *numbers->Integer(0);
  }
  // Only this value leaves the model as Keel computes it.
  Status Expect(std::string_view key, int64_t expected) {
    KEEL_ASSIGN_OR_RETURN(const int64_t found, Int(key, expected));
    if (found == expected) return Status::Ok();
    return Wrong(key, fmt::format("{} is not supported, expected {}", found, expected));
  }
  Status Wrong(std::string_view key, std::string_view problem) const {
    return metadata_.Wrong(Name(key), problem);
  }
  Status CheckAllRead() const {
    for (const std::string& key : metadata_.keys()) {
      if (!key.starts_with(prefix_) || asked_.contains(key)) continue;
      return metadata_.Wrong(
          key, "is not understood: the model might be another one without it, so it is refused");
    }
    return Status::Ok();
  }

 private:
  std::string Ask(std::string_view key) { return *asked_.insert(Name(key)).first; }

  const GgufMetadata& metadata_;
  std::string prefix_;
  std::set<std::string> asked_;
};

Result<GgufFamily> ReadFamily(const GgufMetadata& metadata) {
  KEEL_ASSIGN_OR_RETURN(const std::string name, metadata.String("general.architecture"));
  for (size_t i = 0; i < std::size(kFamilies); ++i) {
    if (kFamilies[i].gguf == name) return static_cast<GgufFamily>(i);
  }
  return metadata.Wrong(
      "general.architecture",
      fmt::format("\"{}\" is not supported, expected llama, qwen2 or qwen3", Printable(name)));
}

// Not a part of a model, nor what changes another.
Status CheckWhole(const GgufMetadata& metadata) {
  KEEL_ASSIGN_OR_RETURN(const std::string type, metadata.String("general.type", "model"));
  if (type != "model") {
    return metadata.Wrong("general.type",
                          fmt::format("\"{}\" is no model by itself", Printable(type)));
  }
  KEEL_ASSIGN_OR_RETURN(const int64_t parts, metadata.Int("split.count", 0));
  if (parts <= 1) return Status::Ok();
  return metadata.Wrong(
      "split.count",
      fmt::format("the file is one of {} parts: join them with llama-gguf-split --merge", parts));
}

// Llama 3's factors as transformers computes them.
std::vector<double> Llama3Factors(double theta, int64_t head_dim, double factor, double original) {
  constexpr double kLow = 1, kHigh = 4;
  std::vector<double> factors;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    const double frequency =
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    const double length = 2 * std::numbers::pi / frequency;
    if (length < original / kHigh) {
      factors.push_back(1);
    } else if (length > original / kLow) {
      factors.push_back(factor);
    } else {
      const double smooth = (original / length - kLow) / (kHigh - kLow);
      factors.push_back(1 / ((1 - smooth) / factor + smooth));
    }
  }
  return factors;
}

// The parameters are not in the file, only what they gave: they are looked for, and proved by
// every factor.
Result<Json> RopeOfFactors(const std::vector<float>& factors, double theta, int64_t head_dim,
                           std::string_view where) {
  const std::string what = fmt::format("{}: tensor {}", where, kRopeFactors);
  if (std::ssize(factors) != head_dim / 2) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: {} values, expected {}", what, factors.size(), head_dim / 2));
  }
  const double factor = static_cast<double>(*std::max_element(factors.begin(), factors.end()));
  for (const int64_t original : {8192, 4096, 16384, 32768}) {
    const std::vector<double> expected =
        Llama3Factors(theta, head_dim, factor, static_cast<double>(original));
    bool same = true;
    for (size_t i = 0; i < factors.size(); ++i)
      same = same && std::abs(static_cast<double>(factors[i]) - expected[i]) <= 1e-4 * expected[i];
    if (!same) continue;
    return Json{{"rope_type", "llama3"},
                {"factor", factor},
                {"low_freq_factor", 1.0},
                {"high_freq_factor", 4.0},
                {"original_max_position_embeddings", original}};
  }
  return Status(StatusCode::kInvalidData,
                what + ": is no scaling of Llama 3 that Keel knows, so it is refused");
}

// Null without one.
Result<Json> ReadRope(Keys& keys, const std::vector<float>& factors, double theta, int64_t head_dim,
                      std::string_view where) {
  KEEL_ASSIGN_OR_RETURN(const std::string type, keys.String("rope.scaling.type", "none"));
  KEEL_ASSIGN_OR_RETURN(const double factor, keys.Double("rope.scaling.factor", 1));
  KEEL_ASSIGN_OR_RETURN(const int64_t original,
                        keys.Int("rope.scaling.original_context_length", 0));
  (void)keys.Int("rope.scaling.finetuned", 0);  // says how it was trained, changes nothing
  if (!factors.empty()) {
    if (type != "none")
      return keys.Wrong("rope.scaling.type", fmt::format("stands beside tensor {}", kRopeFactors));
    return RopeOfFactors(factors, theta, head_dim, where);
  }
  if (type == "none") return Json(nullptr);
  if (type == "linear") return Json{{"rope_type", "linear"}, {"factor", factor}};
  if (type == "yarn") {
    if (original < 1) return keys.Wrong("rope.scaling.original_context_length", "is missing");
    return Json{
        {"rope_type", "yarn"}, {"factor", factor}, {"original_max_position_embeddings", original}};
  }
  return keys.Wrong(
      "rope.scaling.type",
      fmt::format("\"{}\" is not supported, expected none, linear or yarn", Printable(type)));
}

// A float32 of the file as the number that was written: 1e-05, not 9.99999974e-06.
double Shortest(double value) {
  const auto single = static_cast<float>(value);
  if (static_cast<double>(single) != value) return value;
  return std::stod(fmt::format("{}", single));
}

// The ids that begin, end and pad, which must be tokens.
Status ReadIds(const GgufMetadata& metadata, int64_t vocab_size, GgufConfig* out) {
  const auto read = [&](const char* key) -> Result<int64_t> {
    const std::string name = fmt::format("tokenizer.ggml.{}_token_id", key);
    KEEL_ASSIGN_OR_RETURN(const int64_t id, metadata.Int(name, -1));
    // The largest uint32 is "none" in some files.
    if (id == -1 || id == UINT32_MAX) return -1;
    if (id < 0 || id >= vocab_size)
      return metadata.Wrong(name,
                            fmt::format("{} is outside the vocabulary of {}", id, vocab_size));
    return id;
  };
  KEEL_ASSIGN_OR_RETURN(const int64_t bos, read("bos"));
  KEEL_ASSIGN_OR_RETURN(const int64_t pad, read("padding"));
  std::vector<int64_t> ends;
  for (const char* key : {"eos", "eot", "eom"}) {
    KEEL_ASSIGN_OR_RETURN(const int64_t id, read(key));
    if (id >= 0 && std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
  }
  out->generation = Json::object();
  for (Json* json : {&out->config, &out->generation}) {
    if (bos >= 0) (*json)["bos_token_id"] = bos;
    if (!ends.empty()) (*json)["eos_token_id"] = ends.size() == 1 ? Json(ends[0]) : Json(ends);
    if (pad >= 0) (*json)["pad_token_id"] = pad;
  }
  return Status::Ok();
}

}  // namespace

std::string_view GgufFamilyName(GgufFamily family) { return NamesOf(family).gguf; }

Result<GgufConfig> ReadGgufConfig(const GgufFile& file, const std::vector<float>& rope_factors) {
  const GgufMetadata& metadata = file.metadata;
  GgufConfig out;
  KEEL_RETURN_IF_ERROR(CheckWhole(metadata));
  KEEL_ASSIGN_OR_RETURN(out.family, ReadFamily(metadata));
  const FamilyNames& names = NamesOf(out.family);
  Keys keys(metadata, names.gguf);

  // 1. Sizes.
  KEEL_ASSIGN_OR_RETURN(const int64_t hidden, keys.Int("embedding_length"));
  KEEL_ASSIGN_OR_RETURN(const int64_t ffn, keys.SameInAllLayers("feed_forward_length"));
  KEEL_ASSIGN_OR_RETURN(const int64_t layers, keys.Int("block_count"));
  KEEL_ASSIGN_OR_RETURN(const int64_t positions, keys.Int("context_length"));
  KEEL_ASSIGN_OR_RETURN(const int64_t heads, keys.SameInAllLayers("attention.head_count"));
  KEEL_ASSIGN_OR_RETURN(const int64_t kv, keys.SameInAllLayers("attention.head_count_kv", heads));
  if (heads < 1) return keys.Wrong("attention.head_count", "expected 1 or more");
  KEEL_ASSIGN_OR_RETURN(out.head_dim, keys.Int("attention.key_length", hidden / heads));
  if (out.head_dim < 2 || out.head_dim % 2 != 0 || out.head_dim > (1 << 16)) {
    return keys.Wrong("attention.key_length", fmt::format("{} is no size of a head", out.head_dim));
  }
  // A head has one size, and is rotated whole.
  KEEL_RETURN_IF_ERROR(keys.Expect("attention.value_length", out.head_dim));
  KEEL_RETURN_IF_ERROR(keys.Expect("rope.dimension_count", out.head_dim));
  KEEL_RETURN_IF_ERROR(keys.Expect("expert_count", 0));
  KEEL_RETURN_IF_ERROR(keys.Expect("expert_used_count", 0));
  KEEL_ASSIGN_OR_RETURN(const double epsilon, keys.Double("attention.layer_norm_rms_epsilon"));
  KEEL_ASSIGN_OR_RETURN(const double theta, keys.Double("rope.freq_base", 10000));
  KEEL_ASSIGN_OR_RETURN(const Json rope,
                        ReadRope(keys, rope_factors, theta, out.head_dim, metadata.where()));

  // 2. The vocabulary is as long as its embedding: the file may say less, in tokens.
  const GgufTensor* const embedding = FindTensor(file, "token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: has no tensor token_embd.weight of two dims: a file of a "
                              "vocabulary alone is no model",
                              metadata.where()));
  }
  const int64_t vocab_size = embedding->shape[0];
  KEEL_RETURN_IF_ERROR(keys.Expect("vocab_size", vocab_size));
  KEEL_RETURN_IF_ERROR(keys.CheckAllRead());

  // 3. In Hugging Face's words.
  const bool biased = FindTensor(file, "blk.0.attn_q.bias") != nullptr;
  out.config = {{"architectures", Json::array({names.architecture})},
                {"model_type", names.model_type},
                {"hidden_size", hidden},
                {"intermediate_size", ffn},
                {"num_hidden_layers", layers},
                {"num_attention_heads", heads},
                {"num_key_value_heads", kv},
                {"head_dim", out.head_dim},
                {"vocab_size", vocab_size},
                {"max_position_embeddings", positions},
                {"rms_norm_eps", Shortest(epsilon)},
                {"rope_theta", Shortest(theta)},
                {"hidden_act", "silu"},
                {"attention_bias", out.family != GgufFamily::kQwen2 && biased},
                {"attention_dropout", 0.0},
                {"tie_word_embeddings", FindTensor(file, "output.weight") == nullptr},
                {"use_cache", true}};
  if (!rope.is_null()) out.config["rope_scaling"] = rope;
  KEEL_RETURN_IF_ERROR(ReadIds(metadata, vocab_size, &out));
  return out;
}

}  // namespace keel::model
