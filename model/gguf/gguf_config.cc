#include "model/gguf/gguf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "common/text.h"
#include "model/gguf/gguf_experts.h"
#include "model/gguf/gguf_keys.h"

namespace keel::model {

namespace {

constexpr int64_t kMostLayers = 10'000;

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
  // Of an id that is left out, transformers would take the family's.
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
    out->config[key] = nullptr;
  for (Json* json : {&out->config, &out->generation}) {
    if (bos >= 0) (*json)["bos_token_id"] = bos;
    if (!ends.empty()) (*json)["eos_token_id"] = ends.size() == 1 ? Json(ends[0]) : Json(ends);
    if (pad >= 0) (*json)["pad_token_id"] = pad;
  }
  return Status::Ok();
}

}  // namespace

Status CheckWholeModel(const GgufMetadata& metadata) {
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

Result<GgufConfig> ReadGgufConfig(const GgufFile& file, const GgufRopeFactors& factors) {
  const GgufMetadata& metadata = file.metadata;
  GgufConfig out;
  KEEL_RETURN_IF_ERROR(CheckWholeModel(metadata));
  KEEL_ASSIGN_OR_RETURN(out.family, ReadGgufFamily(metadata));
  const GgufFamilyTable& family = GgufTableOf(out.family);
  GgufKeys keys(metadata, family.architecture);

  // 1. Sizes.
  KEEL_ASSIGN_OR_RETURN(const int64_t hidden, keys.Int("embedding_length"));
  // Where no layer is dense, some files leave it out.
  std::optional<int64_t> expert_ffn;
  const bool sparse = !family.experts.names.empty() && family.experts.own_width;
  if (sparse && !family.experts.shared && !keys.Has("feed_forward_length")) {
    KEEL_ASSIGN_OR_RETURN(expert_ffn, keys.Int("expert_feed_forward_length"));
  }
  KEEL_ASSIGN_OR_RETURN(const int64_t ffn, keys.SameInAllLayers("feed_forward_length", expert_ffn));
  KEEL_ASSIGN_OR_RETURN(const int64_t layers, keys.Int("block_count"));
  if (layers < 1 || layers > kMostLayers)
    return keys.Wrong("block_count", fmt::format("{} is no number of layers", layers));
  KEEL_ASSIGN_OR_RETURN(const int64_t positions, keys.Int("context_length"));
  KEEL_ASSIGN_OR_RETURN(const int64_t heads, keys.SameInAllLayers("attention.head_count"));
  KEEL_ASSIGN_OR_RETURN(const int64_t kv, keys.SameInAllLayers("attention.head_count_kv", heads));
  if (heads < 1) return keys.Wrong("attention.head_count", "expected 1 or more");
  KEEL_ASSIGN_OR_RETURN(out.head_dim, keys.Int("attention.key_length", hidden / heads));
  if (out.head_dim < 2 || out.head_dim % 2 != 0 || out.head_dim > (1 << 16)) {
    return keys.Wrong("attention.key_length", fmt::format("{} is no size of a head", out.head_dim));
  }
  KEEL_RETURN_IF_ERROR(keys.Expect("attention.value_length", out.head_dim));  // one size
  KEEL_ASSIGN_OR_RETURN(const double epsilon, keys.Double("attention.layer_norm_rms_epsilon"));

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
  out.config = {{"architectures", Json::array({family.model_class})},
                {"model_type", family.model_type},
                {"hidden_size", hidden},
                {"intermediate_size", ffn},
                {"num_hidden_layers", layers},
                {"num_attention_heads", heads},
                {"num_key_value_heads", kv},
                {"head_dim", out.head_dim},
                {"vocab_size", vocab_size},
                {"max_position_embeddings", positions},
                {"rms_norm_eps", GgufShortest(epsilon)},
                {"hidden_act", family.activation},
                {"attention_dropout", 0.0},
                {"tie_word_embeddings", FindTensor(file, "output.weight") == nullptr},
                {"use_cache", true}};
  if (!family.bias_key.empty())
    out.config[family.bias_key] = FindTensor(file, "blk.0.attn_q.bias") != nullptr;
  KEEL_RETURN_IF_ERROR(family.rope(keys, {out.head_dim, positions, factors}, &out.config));

  // 4. What only this family has.
  KEEL_ASSIGN_OR_RETURN(out.experts, ReadGgufExperts(keys, family.experts, ffn, &out.config));
  if (family.read != nullptr) KEEL_RETURN_IF_ERROR(family.read({file, keys, out.config}));
  KEEL_RETURN_IF_ERROR(keys.CheckAllRead());
  KEEL_RETURN_IF_ERROR(ReadIds(metadata, vocab_size, &out));
  return out;
}

}  // namespace keel::model
