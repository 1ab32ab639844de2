#include "model/gguf/gguf_families.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "common/text.h"

namespace keel::model {

namespace {

constexpr const char* kWindowKey = "attention.sliding_window";

// Norms before and after, or after alone.
constexpr GgufRenamed kGemmaNames[] = {{"ffn_norm", "pre_feedforward_layernorm"},
                                       {"post_attention_norm", "post_attention_layernorm"},
                                       {"post_ffw_norm", "post_feedforward_layernorm"}};
constexpr GgufRenamed kPostNormNames[] = {{"attn_norm", ""},
                                          {"ffn_norm", ""},
                                          {"post_attention_norm", "post_attention_layernorm"},
                                          {"post_ffw_norm", "post_feedforward_layernorm"}};
constexpr GgufRenamed kSeedOssNames[] = {{"ffn_norm", ""},
                                         {"post_attention_norm", "post_attention_layernorm"}};
// Several weights one behind the other, as Hugging Face has them here.
constexpr GgufRenamed kPhi3Names[] = {{"attn_qkv", "self_attn.qkv_proj"},
                                      {"ffn_up", "mlp.gate_up_proj"},
                                      {"attn_q", ""},
                                      {"attn_k", ""},
                                      {"attn_v", ""},
                                      {"ffn_gate", ""}};
constexpr GgufRenamed kMixtralNames[] = {{"ffn_gate_inp", "block_sparse_moe.gate"}};
constexpr GgufRenamed kSharedExpertNames[] = {{"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
                                              {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
                                              {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
                                              {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"}};
constexpr GgufRenamed kExpertNames[] = {
    {"ffn_gate", "gate_proj"}, {"ffn_up", "up_proj"}, {"ffn_down", "down_proj"}};
constexpr GgufRenamed kMixtralExpertNames[] = {
    {"ffn_gate", "w1"}, {"ffn_up", "w3"}, {"ffn_down", "w2"}};

// Which layers have a window: a value for each, or every how manieth has none.
Result<Json> ReadLayerTypes(GgufReading reading, int64_t fallback) {
  constexpr const char* kPattern = "attention.sliding_window_pattern";
  const int64_t layers = reading.Size("num_hidden_layers");
  const GgufValue* const each = reading.keys.Find(kPattern);
  const bool listed = each != nullptr && each->is_array;
  int64_t pattern = 1;
  if (!listed) {
    KEEL_ASSIGN_OR_RETURN(pattern, reading.keys.Int(kPattern, fallback));
    if (pattern < 1)
      return reading.keys.Wrong(kPattern, fmt::format("{} is no number of layers", pattern));
  } else if (each->count != layers) {
    return reading.keys.Wrong(
        kPattern, fmt::format("{} values, expected {}, one a layer", each->count, layers));
  }
  Json types = Json::array();
  for (int64_t i = 0; i < layers; ++i) {
    bool windowed = (i + 1) % pattern != 0;
    if (listed) {
      const std::optional<int64_t> value = each->Integer(i);
      if (!value || (*value != 0 && *value != 1))
        return reading.keys.Wrong(kPattern, "expected true or false for each layer");
      windowed = *value == 1;
    }
    types.push_back(windowed ? "sliding_attention" : "full_attention");
  }
  return types;
}

// 0: none.
Result<int64_t> ReadWindow(GgufKeys& keys, std::optional<int64_t> fallback) {
  KEEL_ASSIGN_OR_RETURN(const int64_t window, keys.SameInAllLayers(kWindowKey, fallback));
  if (window < 0) return keys.Wrong(kWindowKey, fmt::format("{} is no number of tokens", window));
  return window;
}

Result<Json> Softcap(GgufKeys& keys, const char* key, double fallback) {
  KEEL_ASSIGN_OR_RETURN(const double cap, keys.Double(key, fallback));
  return cap > 0 ? Json(GgufShortest(cap)) : Json(nullptr);
}

// Windows, softcaps, the scale of scores and the second rotation of Gemma 2 or 3.
Status ReadGemma(GgufReading reading, bool second) {
  Json& config = reading.config;
  // 1. Every second layer has the window, or five of six.
  KEEL_ASSIGN_OR_RETURN(
      const int64_t window,
      ReadWindow(reading.keys, second ? std::optional<int64_t>(4096) : std::nullopt));
  if (window < 1) return reading.keys.Wrong(kWindowKey, "expected 1 or more");
  KEEL_ASSIGN_OR_RETURN(config["layer_types"], ReadLayerTypes(reading, second ? 2 : 6));
  config["sliding_window"] = window;

  // 2. Scores are scaled by a head's size, but in the two largest models.
  const bool largest = reading.Size("num_hidden_layers") == (second ? 46 : 62);
  config["query_pre_attn_scalar"] =
      largest ? reading.Size("hidden_size") / reading.Size("num_attention_heads")
              : reading.Size("head_dim");
  if (second) {
    KEEL_ASSIGN_OR_RETURN(config["attn_logit_softcapping"],
                          Softcap(reading.keys, "attn_logit_softcapping", 50));
  }
  KEEL_ASSIGN_OR_RETURN(config["final_logit_softcapping"],
                        Softcap(reading.keys, "final_logit_softcapping", second ? 30 : 0));

  // 3. Gemma 3's layers with a window turn by another base, and are never stretched.
  if (!second) {
    KEEL_ASSIGN_OR_RETURN(const double local, reading.keys.Double("rope.freq_base_swa", 10000));
    config["rope_local_base_freq"] = GgufShortest(local);
  }
  config.erase("hidden_act");
  config["hidden_activation"] = "gelu_pytorch_tanh";
  return Status::Ok();
}

Status ReadOlmoe(GgufReading reading) {
  constexpr const char* kClamp = "attention.clamp_kqv";
  KEEL_ASSIGN_OR_RETURN(const double clamp, reading.keys.Double(kClamp, 0));
  if (clamp != 0)
    return reading.keys.Wrong(kClamp, fmt::format("{} is not supported, expected 0", clamp));
  Json& config = reading.config;
  config["num_experts"] = config["num_local_experts"];
  config.erase("num_local_experts");
  config["norm_topk_prob"] = false;
  return Status::Ok();
}

Status ReadNoWindow(GgufReading reading) {
  reading.config["sliding_window"] = nullptr;
  return Status::Ok();
}

// Every layer has the window, or none.
Status ReadPhi3(GgufReading reading) {
  KEEL_ASSIGN_OR_RETURN(const int64_t window, ReadWindow(reading.keys, 0));
  reading.config["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
  return Status::Ok();
}

// Every fourth layer is not turned, which is in no file.
Status ReadSmolLm3(GgufReading reading) {
  constexpr int64_t kInterval = 4;
  reading.config["no_rope_layer_interval"] = kInterval;
  Json turned = Json::array();
  for (int64_t i = 1; i <= reading.Size("num_hidden_layers"); ++i)
    turned.push_back(i % kInterval != 0 ? 1 : 0);
  reading.config["no_rope_layers"] = std::move(turned);
  return Status::Ok();
}

// A window of 0 is none, as if nothing were said.
Status ReadOlmo2(GgufReading reading) { return reading.keys.Expect(kWindowKey, 0); }

Status ReadOlmo3(GgufReading reading) {
  KEEL_ASSIGN_OR_RETURN(reading.config["sliding_window"], ReadWindow(reading.keys, {}));
  KEEL_ASSIGN_OR_RETURN(reading.config["layer_types"], ReadLayerTypes(reading, 4));
  return Status::Ok();
}

// Three layers of four have the window, and the fourth is not turned; in a model without a window
// all are. Of 64 layers it is the 32B model's.
Status ReadExaone4(GgufReading reading) {
  constexpr int64_t kPattern = 4;
  const bool largest = reading.Size("num_hidden_layers") == 64;
  KEEL_ASSIGN_OR_RETURN(const int64_t window, ReadWindow(reading.keys, largest ? 4096 : 0));
  reading.config["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
  KEEL_ASSIGN_OR_RETURN(reading.config["layer_types"],
                        ReadLayerTypes(reading, window > 0 ? kPattern : 1));
  return Status::Ok();
}

Status ReadGranite(GgufReading reading) {
  // A Granite 4 without layers of state space says what they would be, and is Granite 3's model.
  for (const char* size :
       {"conv_kernel", "group_count", "inner_size", "state_size", "time_step_rank"})
    (void)reading.keys.Find(fmt::format("ssm.{}", size));
  KEEL_RETURN_IF_ERROR(
      reading.keys.Expect("expert_shared_feed_forward_length", reading.Size("intermediate_size")));
  constexpr const char* kTurned = "rope.scaling.finetuned";  // what llama.cpp takes it for here
  KEEL_ASSIGN_OR_RETURN(const bool turned, reading.keys.Bool(kTurned, true));
  if (!turned)
    return reading.keys.Wrong(kTurned, "false is not supported: no layer would be turned");
  // A factor of 0 is none, but for the last, which must be there.
  const double head = static_cast<double>(reading.Size("head_dim"));
  const auto factor = [&](const char* key, double fallback) -> Result<double> {
    KEEL_ASSIGN_OR_RETURN(const double value, reading.keys.Double(key, fallback));
    return value == 0 ? fallback : GgufShortest(value);
  };
  Json& config = reading.config;
  KEEL_ASSIGN_OR_RETURN(config["attention_multiplier"],
                        factor("attention.scale", 1 / std::sqrt(head)));
  KEEL_ASSIGN_OR_RETURN(config["embedding_multiplier"], factor("embedding_scale", 1));
  KEEL_ASSIGN_OR_RETURN(config["residual_multiplier"], factor("residual_scale", 1));
  KEEL_ASSIGN_OR_RETURN(const double logits, reading.keys.Double("logit_scale"));
  config["logits_scaling"] = GgufShortest(logits);
  return Status::Ok();
}

Status ReadSeedOss(GgufReading reading) {
  reading.config["attention_out_bias"] = reading.HasTensor("blk.0.attn_output.bias");
  reading.config["residual_dropout"] = 0.0;
  return Status::Ok();
}

// In the order of enum GgufFamily.
constexpr GgufFamilyTable kTables[] = {
    {.family = GgufFamily::kLlama,
     .architecture = "llama",
     .model_type = "llama",
     .model_class = "LlamaForCausalLM",
     .mixed_heads = true},
    {.family = GgufFamily::kMixtral,
     .architecture = "llama",
     .model_type = "mixtral",
     .model_class = "MixtralForCausalLM",
     .names = kMixtralNames,
     .experts = {.names = kMixtralExpertNames, .room = "block_sparse_moe", .own_width = false},
     .mixed_heads = true,
     .read = ReadNoWindow},
    {.family = GgufFamily::kQwen2,
     .architecture = "qwen2",
     .model_type = "qwen2",
     .model_class = "Qwen2ForCausalLM",
     .bias_key = ""},
    {.family = GgufFamily::kQwen2Moe,
     .architecture = "qwen2moe",
     .model_type = "qwen2_moe",
     .model_class = "Qwen2MoeForCausalLM",
     .names = kSharedExpertNames,
     .experts = {.names = kExpertNames, .renormalized = false, .shared = true},
     .bias_key = "qkv_bias"},
    {.family = GgufFamily::kQwen3,
     .architecture = "qwen3",
     .model_type = "qwen3",
     .model_class = "Qwen3ForCausalLM"},
    {.family = GgufFamily::kQwen3Moe,
     .architecture = "qwen3moe",
     .model_type = "qwen3_moe",
     .model_class = "Qwen3MoeForCausalLM",
     .experts = {.names = kExpertNames}},
    {.family = GgufFamily::kGemma2,
     .architecture = "gemma2",
     .model_type = "gemma2",
     .model_class = "Gemma2ForCausalLM",
     .names = kGemmaNames,
     .one_added = true,
     .read = [](GgufReading reading) { return ReadGemma(reading, true); }},
    {.family = GgufFamily::kGemma3,
     .architecture = "gemma3",
     .model_type = "gemma3_text",
     .model_class = "Gemma3ForCausalLM",
     .names = kGemmaNames,
     .one_added = true,
     .read = [](GgufReading reading) { return ReadGemma(reading, false); }},
    {.family = GgufFamily::kPhi3,
     .architecture = "phi3",
     .model_type = "phi3",
     .model_class = "Phi3ForCausalLM",
     .names = kPhi3Names,
     .bias_key = "",
     .rope = ReadGgufPhiRope,
     .rope_tensors = kLongropeTensors,
     .read = ReadPhi3},
    {.family = GgufFamily::kSmolLm3,
     .architecture = "smollm3",
     .model_type = "smollm3",
     .model_class = "SmolLM3ForCausalLM",
     .mixed_heads = true,
     .read = ReadSmolLm3},
    {.family = GgufFamily::kOlmo2,
     .architecture = "olmo2",
     .model_type = "olmo2",
     .model_class = "Olmo2ForCausalLM",
     .names = kPostNormNames,
     .read = ReadOlmo2},
    {.family = GgufFamily::kOlmo3,
     .architecture = "olmo2",
     .model_type = "olmo3",
     .model_class = "Olmo3ForCausalLM",
     .names = kPostNormNames,
     .rope = ReadGgufTwoRopes,
     .read = ReadOlmo3},
    {.family = GgufFamily::kGranite,
     .architecture = "granite",
     .model_type = "granite",
     .model_class = "GraniteForCausalLM",
     .mixed_heads = true,
     .read = ReadGranite},
    {.family = GgufFamily::kSeedOss,
     .architecture = "seed_oss",
     .model_type = "seed_oss",
     .model_class = "SeedOssForCausalLM",
     .names = kSeedOssNames,
     .read = ReadSeedOss},
    {.family = GgufFamily::kArcee,
     .architecture = "arcee",
     .model_type = "arcee",
     .model_class = "ArceeForCausalLM",
     .mixed_heads = true,
     .activation = "relu2"},
    {.family = GgufFamily::kExaone4,
     .architecture = "exaone4",
     .model_type = "exaone4",
     .model_class = "Exaone4ForCausalLM",
     .names = kPostNormNames,
     .bias_key = "",
     .read = ReadExaone4},
    {.family = GgufFamily::kGemma,
     .architecture = "gemma",
     .model_type = "gemma",
     .model_class = "GemmaForCausalLM",
     .one_added = true,
     .activation = "gelu_pytorch_tanh"},
    {.family = GgufFamily::kOlmoe,
     .architecture = "olmoe",
     .model_type = "olmoe",
     .model_class = "OlmoeForCausalLM",
     .experts = {.names = kExpertNames, .own_width = false, .renormalized = false},
     .read = ReadOlmoe},
};

}  // namespace

const GgufFamilyTable& GgufTableOf(GgufFamily family) {
  return kTables[static_cast<size_t>(family)];
}

Result<GgufFamily> ReadGgufFamily(const GgufMetadata& metadata) {
  KEEL_ASSIGN_OR_RETURN(const std::string name, metadata.String("general.architecture"));
  std::vector<std::string_view> known;
  for (const GgufFamilyTable& table : kTables) {
    if (table.architecture != name) {
      if (known.empty() || known.back() != table.architecture) known.push_back(table.architecture);
      continue;
    }
    // A Llama with experts is what Hugging Face calls Mixtral, an OLMo 2 with a window OLMo 3.
    GgufKeys keys(metadata, name);
    if (table.family == GgufFamily::kLlama) {
      KEEL_ASSIGN_OR_RETURN(const int64_t experts, keys.Int("expert_count", 0));
      return experts > 0 ? GgufFamily::kMixtral : GgufFamily::kLlama;
    }
    if (table.family == GgufFamily::kOlmo2) {
      KEEL_ASSIGN_OR_RETURN(const int64_t window, ReadWindow(keys, 0));
      return window > 0 ? GgufFamily::kOlmo3 : GgufFamily::kOlmo2;
    }
    return table.family;
  }
  return metadata.Wrong("general.architecture",
                        fmt::format("\"{}\" is not supported, expected one of {}", Printable(name),
                                    fmt::join(known, ", ")));
}

}  // namespace keel::model
