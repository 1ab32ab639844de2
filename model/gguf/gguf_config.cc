#include "model/gguf/gguf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "common/text.h"
#include "model/gguf/gguf_families.h"
#include "model/gguf/gguf_keys.h"
#include "model/gguf/gguf_rope.h"

namespace keel::model {

namespace {

struct FamilyNames {
  std::string_view gguf, model_type, architecture;
};
constexpr FamilyNames kFamilies[] = {
    {"llama", "llama", "LlamaForCausalLM"},    {"qwen2", "qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "qwen3", "Qwen3ForCausalLM"},    {"qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM"},
    {"gemma2", "gemma2", "Gemma2ForCausalLM"}, {"gemma3", "gemma3_text", "Gemma3ForCausalLM"},
    {"llama", "mixtral", "MixtralForCausalLM"}};

const FamilyNames& NamesOf(GgufFamily family) { return kFamilies[static_cast<size_t>(family)]; }

const GgufTensor* FindTensor(const GgufFile& file, std::string_view name) {
  for (const GgufTensor& tensor : file.tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

Result<GgufFamily> ReadFamily(const GgufMetadata& metadata) {
  KEEL_ASSIGN_OR_RETURN(const std::string name, metadata.String("general.architecture"));
  // A Llama with experts is what Hugging Face calls Mixtral.
  if (name == "llama") {
    KEEL_ASSIGN_OR_RETURN(const int64_t experts, metadata.Int("llama.expert_count", 0));
    return experts > 0 ? GgufFamily::kMixtral : GgufFamily::kLlama;
  }
  for (size_t i = 0; i < std::size(kFamilies); ++i) {
    if (kFamilies[i].gguf == name) return static_cast<GgufFamily>(i);
  }
  return metadata.Wrong(
      "general.architecture",
      fmt::format(
          "\"{}\" is not supported, expected llama, qwen2, qwen3, qwen3moe, gemma2 or gemma3",
          Printable(name)));
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

double GgufShortest(double value) {
  const auto single = static_cast<float>(value);
  if (static_cast<double>(single) != value) return value;
  return std::stod(fmt::format("{}", single));
}

std::string_view GgufFamilyName(GgufFamily family) { return NamesOf(family).gguf; }

Result<GgufConfig> ReadGgufConfig(const GgufFile& file, const std::vector<float>& rope_factors) {
  const GgufMetadata& metadata = file.metadata;
  GgufConfig out;
  KEEL_RETURN_IF_ERROR(CheckWhole(metadata));
  KEEL_ASSIGN_OR_RETURN(out.family, ReadFamily(metadata));
  const FamilyNames& names = NamesOf(out.family);
  GgufKeys keys(metadata, names.gguf);

  // 1. Sizes.
  KEEL_ASSIGN_OR_RETURN(const int64_t hidden, keys.Int("embedding_length"));
  // Of Qwen3-MoE, none of whose layers is dense, some files leave it out.
  std::optional<int64_t> expert_ffn;
  if (out.family == GgufFamily::kQwen3Moe && !keys.Has("feed_forward_length")) {
    KEEL_ASSIGN_OR_RETURN(expert_ffn, keys.Int("expert_feed_forward_length"));
  }
  KEEL_ASSIGN_OR_RETURN(const int64_t ffn, keys.SameInAllLayers("feed_forward_length", expert_ffn));
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
  KEEL_ASSIGN_OR_RETURN(const double epsilon, keys.Double("attention.layer_norm_rms_epsilon"));
  KEEL_ASSIGN_OR_RETURN(const double theta, keys.Double("rope.freq_base", 10000));
  KEEL_ASSIGN_OR_RETURN(const Json rope, ReadGgufRope(keys, rope_factors, theta, out.head_dim));

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
                {"rms_norm_eps", GgufShortest(epsilon)},
                {"rope_theta", GgufShortest(theta)},
                {"hidden_act", "silu"},
                {"attention_bias", out.family != GgufFamily::kQwen2 && biased},
                {"attention_dropout", 0.0},
                {"tie_word_embeddings", FindTensor(file, "output.weight") == nullptr},
                {"use_cache", true}};
  if (!rope.is_null()) out.config["rope_scaling"] = rope;

  // 4. What only this family has.
  KEEL_ASSIGN_OR_RETURN(out.experts, ReadGgufExperts(keys, out.family, ffn, &out.config));
  if (out.family == GgufFamily::kGemma2 || out.family == GgufFamily::kGemma3)
    KEEL_RETURN_IF_ERROR(ReadGgufGemma(keys, out.family, &out.config));
  KEEL_RETURN_IF_ERROR(keys.CheckAllRead());
  KEEL_RETURN_IF_ERROR(ReadIds(metadata, vocab_size, &out));
  return out;
}

}  // namespace keel::model
