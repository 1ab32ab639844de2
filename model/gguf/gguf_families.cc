#include "model/gguf/gguf_families.h"

#include <fmt/format.h>

namespace keel::model {

namespace {

// One number, or a value for each layer that must be the pattern of one.
Result<int64_t> ReadWindowPattern(GgufKeys& keys, int64_t layers, int64_t fallback) {
  constexpr const char* kKey = "attention.sliding_window_pattern";
  const GgufValue* const value = keys.Find(kKey);
  if (value == nullptr || !value->is_array) {
    KEEL_ASSIGN_OR_RETURN(const int64_t pattern, keys.Int(kKey, fallback));
    if (pattern >= 1) return pattern;
    return keys.Wrong(kKey, fmt::format("{} is no number of layers", pattern));
  }
  for (int64_t i = 0; i < value->count; ++i) {
    const bool windowed = value->count == layers && value->Integer(i).value_or(0) == 1;
    if (windowed == ((i + 1) % fallback != 0)) continue;
    return keys.Wrong(
        kKey, fmt::format("expected {} layers, every {}. without a window", layers, fallback));
  }
  return fallback;
}

Result<Json> Softcap(GgufKeys& keys, const char* key, double fallback) {
  KEEL_ASSIGN_OR_RETURN(const double cap, keys.Double(key, fallback));
  return cap > 0 ? Json(GgufShortest(cap)) : Json(nullptr);
}

}  // namespace

Result<int64_t> ReadGgufExperts(GgufKeys& keys, GgufFamily family, int64_t ffn, Json* config) {
  const bool mixtral = family == GgufFamily::kMixtral;
  if (!mixtral && family != GgufFamily::kQwen3Moe) {
    KEEL_RETURN_IF_ERROR(keys.Expect("expert_count", 0));
    KEEL_RETURN_IF_ERROR(keys.Expect("expert_used_count", 0));
    return 0;
  }
  KEEL_ASSIGN_OR_RETURN(const int64_t experts, keys.Int("expert_count"));
  KEEL_ASSIGN_OR_RETURN(const int64_t used, keys.Int("expert_used_count"));
  if (experts < 1 || experts > kMostGgufExperts)
    return keys.Wrong("expert_count", fmt::format("{} is no number of experts", experts));
  if (used < 1 || used > experts)
    return keys.Wrong("expert_used_count", fmt::format("{} of {} experts", used, experts));
  KEEL_RETURN_IF_ERROR(keys.Expect("expert_shared_count", 0));
  KEEL_RETURN_IF_ERROR(keys.Expect("expert_shared_feed_forward_length", 0));
  KEEL_RETURN_IF_ERROR(keys.Expect("expert_gating_func", 1));  // softmax
  KEEL_ASSIGN_OR_RETURN(const bool norm, keys.Bool("expert_weights_norm", true));
  if (!norm) return keys.Wrong("expert_weights_norm", "false is not supported, expected true");
  KEEL_ASSIGN_OR_RETURN(const double scale, keys.Double("expert_weights_scale", 1));
  if (scale != 0 && scale != 1)
    return keys.Wrong("expert_weights_scale",
                      fmt::format("{} is not supported, expected 1", scale));

  (*config)["num_experts_per_tok"] = used;
  if (mixtral) {
    KEEL_RETURN_IF_ERROR(keys.Expect("expert_feed_forward_length", ffn));
    (*config)["num_local_experts"] = experts;
    (*config)["sliding_window"] = nullptr;
    return experts;
  }
  KEEL_ASSIGN_OR_RETURN(const int64_t width, keys.Int("expert_feed_forward_length"));
  (*config)["num_experts"] = experts;
  (*config)["moe_intermediate_size"] = width;
  // As llama.cpp computes any model of this architecture.
  (*config)["norm_topk_prob"] = true;
  (*config)["decoder_sparse_step"] = 1;
  (*config)["mlp_only_layers"] = Json::array();
  return experts;
}

Status ReadGgufGemma(GgufKeys& keys, GgufFamily family, Json* config) {
  const bool second = family == GgufFamily::kGemma2;
  const auto size = [&](const char* key) { return (*config)[key].get<int64_t>(); };
  const int64_t layers = size("num_hidden_layers");
  // 1. Every second layer has the window, or five of six.
  KEEL_ASSIGN_OR_RETURN(
      const int64_t window,
      keys.Int("attention.sliding_window", second ? std::optional<int64_t>(4096) : std::nullopt));
  if (window < 1) return keys.Wrong("attention.sliding_window", "expected 1 or more");
  KEEL_ASSIGN_OR_RETURN(const int64_t pattern, ReadWindowPattern(keys, layers, second ? 2 : 6));
  Json types = Json::array();
  for (int64_t i = 0; i < layers; ++i)
    types.push_back((i + 1) % pattern != 0 ? "sliding_attention" : "full_attention");
  (*config)["sliding_window"] = window;
  (*config)["layer_types"] = std::move(types);

  // 2. Scores are scaled by a head's size, but in the two largest models.
  const bool largest = layers == (second ? 46 : 62);
  (*config)["query_pre_attn_scalar"] =
      largest ? size("hidden_size") / size("num_attention_heads") : size("head_dim");
  if (second) {
    KEEL_ASSIGN_OR_RETURN((*config)["attn_logit_softcapping"],
                          Softcap(keys, "attn_logit_softcapping", 50));
  }
  KEEL_ASSIGN_OR_RETURN((*config)["final_logit_softcapping"],
                        Softcap(keys, "final_logit_softcapping", second ? 30 : 0));

  // 3. Gemma 3's layers with a window turn by another base, and are never stretched.
  if (!second) {
    KEEL_ASSIGN_OR_RETURN(const double local, keys.Double("rope.freq_base_swa", 10000));
    (*config)["rope_local_base_freq"] = GgufShortest(local);
  }
  config->erase("hidden_act");
  (*config)["hidden_activation"] = "gelu_pytorch_tanh";
  return Status::Ok();
}

}  // namespace keel::model
