#include "model/config/hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "common/text.h"
#include "model/config/adapter_tensors.h"
#include "model/config/config_reader.h"
#include "model/config/family_table.h"
#include "model/config/hf_tensors.h"
#include "model/config/quantization.h"
#include "model/config/rope_config.h"
#include "model/config/text_part.h"

namespace keel::model {

namespace {

// Keys that change what some model of transformers computes, and the values with which they do not.
// A family that has a key asks for it; where none did, another value is refused.
struct ChangingKey {
  std::string_view key;
  const char* neutral;  // JSON texts, each of which is no change, one after another
};
constexpr ChangingKey kChangingKeys[] = {
    {"attention_bias", "[false]"},
    {"attention_multiplier", "[]"},
    {"attention_out_bias", "[false]"},
    {"attn_logit_softcapping", "[]"},
    {"clip_qkv", "[]"},
    {"decoder_sparse_step", "[1]"},
    {"embedding_multiplier", "[1]"},
    {"final_logit_softcapping", "[]"},
    {"first_k_dense_replace", "[0]"},
    {"hidden_act", R"(["silu"])"},
    {"hidden_activation", R"(["silu"])"},
    {"is_causal", "[true]"},
    {"is_decoder", "[true, false]"},
    {"logit_scale", "[1]"},
    {"logits_scaling", "[1]"},
    {"mlp_bias", "[false]"},
    {"mlp_only_layers", "[[]]"},
    {"moe_intermediate_size", "[0]"},
    {"n_group", "[1]"},
    {"n_routed_experts", "[0]"},
    {"n_shared_experts", "[0]"},
    {"no_rope_layers", "[[]]"},
    {"norm_topk_prob", "[]"},
    {"num_experts", "[0]"},
    {"num_experts_per_tok", "[0]"},
    {"num_local_experts", "[0]"},
    {"original_max_position_embeddings", "[]"},
    {"output_router_logits", "[false]"},
    {"partial_rotary_factor", "[1]"},
    {"per_layer_config", "[{}]"},
    {"qk_layernorm", "[false]"},
    {"qkv_bias", "[false]"},
    {"query_pre_attn_scalar", "[]"},
    {"residual_multiplier", "[1]"},
    {"rope_local_base_freq", "[]"},
    {"rotary_dim", "[]"},
    {"rotary_emb_base", "[]"},
    {"rotary_pct", "[1]"},
    {"routed_scaling_factor", "[1]"},
    {"router_jitter_noise", "[0]"},
    {"shared_expert_intermediate_size", "[0]"},
    {"sliding_window", "[]"},
    {"sliding_window_pattern", "[]"},
    {"topk_group", "[1]"},
    {"use_bias", "[false]"},
    {"use_bidirectional_attention", "[false]"},
    {"use_parallel_residual", "[false]"},
    {"use_qk_norm", "[false]"},
    {"use_qkv_bias", "[false]"},
    {"use_sliding_window", "[false]"},
};

void RefuseQuantized(ConfigReader& reader) {
  const Json* quantized = reader.Find("quantization_config");
  if (quantized == nullptr) return;
  const Json method = quantized->is_object() ? quantized->value("quant_method", Json()) : Json();
  const Result<std::optional<Quantization>> known = ReadQuantization(reader.json(), "");
  reader.Problem(fmt::format(
      "quantization_config: the weights are quantized ({}), and Keel reads those of F32, BF16, F16 "
      "and F64: {}",
      Shown(method.is_null() ? *quantized : method),
      known.ok() ? "keel ckpt dequantize-hf DIR --out OUT makes them so"
                 : "give the model that they were made of, or what transformers' "
                   "AutoModelForCausalLM.from_pretrained(DIR).dequantize().save_pretrained(OUT) "
                   "writes, where it can"));
}

void RefuseOtherKeys(ConfigReader& reader, std::string_view family) {
  for (const ChangingKey& key : kChangingKeys) {
    if (reader.asked_for(key.key)) continue;
    const Json* value = reader.Find(key.key);
    if (value == nullptr) continue;
    const Json neutral = Json::parse(key.neutral);
    if (std::find(neutral.begin(), neutral.end(), *value) != neutral.end()) continue;
    std::vector<std::string> accepted = {"no such key"};
    for (const Json& each : neutral) accepted.push_back(each.dump());
    reader.Problem(fmt::format("{}: {} is not supported for model_type {}, expected {}", key.key,
                               Shown(*value), family, fmt::join(accepted, " or ")));
  }
}

// layer_types in a family that does not go by it: it may say what is computed anyhow, as files
// that name the kinds of layers whatever the model have it.
void CheckLayerTypes(ConfigReader& reader, const HfConfig& config) {
  if (reader.asked_for("layer_types")) return;
  const Json* types = reader.Find("layer_types");
  if (types == nullptr) return;
  const char* const computed = config.windowed.empty() ? "full_attention" : "sliding_attention";
  const bool same =
      types->is_array() && std::ssize(*types) == config.num_hidden_layers &&
      std::all_of(types->begin(), types->end(), [&](const Json& type) { return type == computed; });
  if (same) return;
  reader.Problem(fmt::format(
      "layer_types: expected no such key, or \"{}\" for each of the {} layers, which is what {} "
      "with these keys computes",
      computed, config.num_hidden_layers, FamilyOf(config.family).model_type));
}

// No dropout is computed, and whoever trains is told so: what the file names is kept for exports.
void ReadDropouts(ConfigReader& reader, const FamilyTable& family, HfConfig& config) {
  config.attention_dropout = reader.Within(0, 1, "attention_dropout", family.dropout);
  config.residual_dropout = reader.Within(0, 1, "residual_dropout", family.dropout);
  for (const char* key :
       {"resid_pdrop", "embd_pdrop", "embed_dropout", "embedding_dropout", "hidden_dropout"})
    config.other_dropout = std::max(config.other_dropout, reader.Within(0, 1, key, 0));
}

Activation ReadActivation(ConfigReader& reader, const FamilyTable& family) {
  std::string name = reader.String(family.activation_key, std::string(family.activation));
  if (!name.empty() && name == family.old_activation) name = family.activation;
  const bool plain = family.block.ffn == FfnKind::kPlain;
  if (plain && name == "relu2") return Activation::kRelu2;
  if (plain && name == "gelu") return Activation::kGelu;
  if (plain && name == "relu") return Activation::kRelu;
  if (!plain && (name == "silu" || name == "swish")) return Activation::kSilu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new" || (plain && name == "gelu_fast"))
    return Activation::kGeluTanh;
  reader.Problem(fmt::format(
      "{}: \"{}\" is not supported, expected {}", family.activation_key, Printable(name),
      plain ? "relu, relu2, gelu or gelu_pytorch_tanh" : "silu or gelu_pytorch_tanh"));
  return Activation::kSilu;
}

const char* NameOf(Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return "silu";
    case Activation::kGeluTanh:
      return "gelu_pytorch_tanh";
    case Activation::kRelu2:
      return "relu2";
    case Activation::kGelu:
      return "gelu";
    case Activation::kRelu:
      return "relu";
  }
  return "";
}

std::vector<int64_t> ReadEosTokenIds(ConfigReader& reader) {
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

// For a model of texts and images or sounds, whose text model may be one of these families.
std::string TextPartAdvice(const Json& json) {
  const auto part = json.find("text_config");
  if (part == json.end() || !part->is_object()) return "";
  const auto type = part->find("model_type");
  if (type == part->end() || !type->is_string() || FindFamily(type->get<std::string>()) == nullptr)
    return "";
  return fmt::format(
      ", whose text_config is of model_type {}: save that part, with the tensors under "
      "language_model, as a model of its own (the text part of a directory is read where "
      "model_type is {})",
      type->get<std::string>(), WholeNames());
}

Result<HfConfig> ReadHfConfig(ConfigReader& reader, std::string_view where) {
  HfConfig config;
  const std::string type = reader.String("model_type", "");
  const FamilyTable* found = FindFamily(type);
  if (found == nullptr) {  // of which no other key says anything
    reader.Problem(fmt::format("model_type: expected one of {}, found \"{}\"{}", FamilyNames(),
                               Printable(type), TextPartAdvice(reader.json())));
    return reader.status();
  }
  const FamilyTable& family = *found;
  reader.Rename(family.keys);
  config.family = family.family;
  config.hidden_size = reader.Positive("hidden_size", std::nullopt, kMostHidden);
  const int64_t usual_width =
      family.width > 0
          ? family.width
          : family.width_times * std::clamp<int64_t>(config.hidden_size, 0, kMostHidden);
  config.intermediate_size =
      reader.Positive(family.width_key, usual_width > 0 ? std::optional(usual_width) : std::nullopt,
                      kMostIntermediate);
  config.num_hidden_layers = reader.Positive("num_hidden_layers", std::nullopt, kMostLayers);
  config.num_attention_heads = reader.Positive("num_attention_heads", std::nullopt, kMostHeads);
  // Written as null it is num_attention_heads with every family that may have it so.
  const bool kv_heads_said = reader.json().contains("num_key_value_heads");
  config.num_key_value_heads = reader.Positive(
      "num_key_value_heads",
      family.kv_heads == 0 || kv_heads_said ? config.num_attention_heads : family.kv_heads,
      kMostHeads);
  config.vocab_size = reader.Positive("vocab_size", std::nullopt, kMostVocabulary);
  config.max_position_embeddings =
      reader.Positive("max_position_embeddings", family.positions, kMostPositions);
  const int64_t heads = std::max<int64_t>(1, config.num_attention_heads);
  if (reader.Find("head_dim") == nullptr && family.head_dim == 0 &&
      config.hidden_size % heads != 0) {
    reader.Problem(fmt::format("{} {} is not a multiple of {} {}: give head_dim",
                               reader.InFile("hidden_size"), config.hidden_size,
                               reader.InFile("num_attention_heads"), heads));
  }
  config.head_dim = reader.Positive(
      "head_dim", family.head_dim != 0 ? family.head_dim : config.hidden_size / heads, kMostHeads);
  config.rms_norm_eps = reader.Within(0, 1, family.eps_key, family.eps);
  config.tie_word_embeddings = reader.Bool("tie_word_embeddings", family.tied);
  config.initializer_range = reader.Within(0, 1e3, "initializer_range", 0.02);
  config.activation = ReadActivation(reader, family);

  if (config.num_attention_heads > 0 && config.num_key_value_heads > 0 &&
      config.num_attention_heads % config.num_key_value_heads != 0) {
    reader.Problem(fmt::format(
        "{} {} is not a multiple of num_key_value_heads {}{}", reader.InFile("num_attention_heads"),
        config.num_attention_heads, config.num_key_value_heads,
        kv_heads_said ? "" : fmt::format(", which {} has where the key is left out", type)));
  }
  if (config.head_dim % 2 != 0) reader.Problem(fmt::format("head_dim {} is odd", config.head_dim));
  ReadDropouts(reader, family, config);
  family.read(reader, config);
  CheckLayerTypes(reader, config);
  RefuseQuantized(reader);
  RefuseOtherKeys(reader, type);

  const std::string dtype = reader.String("dtype", reader.String("torch_dtype", ""));
  if (dtype == "float32") config.dtype = DType::kF32;
  if (dtype == "bfloat16") config.dtype = DType::kBF16;
  if (dtype == "float16") config.dtype = DType::kF16;
  if (reader.Find("bos_token_id") != nullptr) config.bos_token_id = reader.Int("bos_token_id", 0);
  config.eos_token_ids = ReadEosTokenIds(reader);
  KEEL_RETURN_IF_ERROR(reader.status());
  if (config.moe.experts * config.num_hidden_layers > kMostExpertsOfAll) {
    return Status(
        StatusCode::kInvalidData,
        fmt::format("{}: {} experts in each of {} layers are more than {}: one of the two "
                    "is wrong",
                    where, config.moe.experts, config.num_hidden_layers, kMostExpertsOfAll));
  }
  // In floating point, which does not overflow.
  const double width = static_cast<double>(config.hidden_size);
  const double parameters =
      static_cast<double>(config.num_hidden_layers) *
          (config.AttentionWeights(config.num_attention_heads, config.num_attention_heads) +
           config.DeltaWeights(config.delta.key_heads) +
           3 * width * static_cast<double>(config.intermediate_size) +
           3 * width * static_cast<double>(config.moe.experts) *
               static_cast<double>(config.moe.width)) +
      width * (2 * static_cast<double>(config.vocab_size) +
               static_cast<double>(config.learned_positions().rows));
  if (parameters > static_cast<double>(kMostParameters)) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: describes a model of some {:.1e} parameters, more than {:.1e}: "
                              "one of its sizes is wrong",
                              where, parameters, static_cast<double>(kMostParameters)));
  }
  return config;
}

// Keys that files of transformers have and that change nothing here.
constexpr std::string_view kSayNothing[] = {
    "_attn_implementation", "_name_or_path", "architectures",  "auto_map",
    "cls_token_id",         "pad_token_id",  "pretraining_tp", "sep_token_id",
    "transformers_version", "use_cache"};

}  // namespace

Status CheckSpecialIds(const Json& json, int64_t vocab_size, std::string_view where) {
  if (!json.is_object()) return NotAMap(where);
  ConfigReader reader(json, where);
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
  ConfigReader reader(json, where);
  std::vector<int64_t> ids = ReadEosTokenIds(reader);
  KEEL_RETURN_IF_ERROR(reader.status());
  return ids;
}

Result<HfConfig> ParseHfConfig(const Json& json, std::string_view where) {
  if (!json.is_object()) return NotAMap(where);
  ConfigReader reader(json, where);
  return ReadHfConfig(reader, where);
}

UnreadKeys UnreadKeysOf(const Json& json) {
  UnreadKeys unread;
  if (!json.is_object()) return unread;
  ConfigReader reader(json, "");
  (void)ReadHfConfig(reader, "");
  const std::vector<std::string> read(reader.asked().begin(), reader.asked().end());
  for (const auto& [key, value] : json.items()) {
    if (reader.asked_for(key)) continue;
    if (std::find(std::begin(kSayNothing), std::end(kSayNothing), key) != std::end(kSayNothing))
      continue;
    if (const std::string near = Closest(key, read); !near.empty() && !json.contains(near)) {
      unread.misspelt.emplace_back(key, near);
    } else {
      unread.others.push_back(key);
    }
  }
  return unread;
}

double HfConfig::DeltaWeights(int64_t key_heads) const {
  const auto d = [](int64_t value) { return static_cast<double>(value); };
  const double values = d(delta.per_key()) * d(delta.value_dim);
  return d(key_heads) *
         (d(hidden_size) * (2 * d(delta.key_dim) + 3 * values + 2 * d(delta.per_key())) +
          d(delta.taps) * (2 * d(delta.key_dim) + values));
}

double HfConfig::AttentionWeights(int64_t heads, int64_t kv_heads) const {
  const auto d = [](int64_t value) { return static_cast<double>(value); };
  if (!latent.used()) {
    const double of_query = FamilyOf(family).block.gated ? 1.5 : 1;  // gates, too
    return d(hidden_size) * 2 * d(head_dim) * (of_query * d(heads) + d(kv_heads));
  }
  const double q_from = d(latent.q_rank > 0 ? latent.q_rank : hidden_size);
  return d(hidden_size) * (d(latent.q_rank) + d(latent.kv_rank) + d(latent.turned_dims)) +
         d(heads) * (q_from * d(latent.key_dims()) + d(latent.kv_rank) * d(latent.kv_dims()) +
                     d(latent.value_dims) * d(hidden_size));
}

LayerSpec HfConfig::Layer(int64_t layer) const {
  LayerSpec spec = FamilyOf(family).block;
  const auto index = static_cast<size_t>(layer);
  spec.activation = activation;
  spec.parallel = parallel_residual;
  if (!windowed.empty() && windowed[index]) {
    spec.window = sliding_window;
    if (local_rope) spec.rope = RopeChoice::kLocal;
  }
  if (!unturned.empty() && unturned[index]) spec.rope = RopeChoice::kNone;
  if (!recurrent.empty() && recurrent[index]) spec.mixer = Mixer::kDeltaRule;
  if (query_pre_attn_scalar > 0) spec.score_scale = 1 / std::sqrt(query_pre_attn_scalar);
  if (attention_multiplier > 0) spec.score_scale = attention_multiplier;
  if (latent.used()) {
    spec.score_scale = rope.ScoreFactor() / std::sqrt(static_cast<double>(latent.key_dims()));
  }
  if (scores_by_layer) {
    const double usual = spec.score_scale > 0 ? spec.score_scale : 1 / std::sqrt(head_dim);
    spec.score_scale = usual / static_cast<double>(layer + 1);
  }
  if (qkv_by_head) spec.qkv = QkvTensors::kByHead;
  if (!qk_norm) spec.qk_norm = QkNorm::kNone;
  spec.score_softcap = score_softcap;
  spec.residual_scale = residual_multiplier;
  if (moe.experts > 0 && (dense_ffn.empty() || !dense_ffn[index])) {
    spec.ffn = FfnKind::kMoe;
    spec.moe = moe;
  }
  return spec;
}

LearnedPositions HfConfig::learned_positions() const {
  const std::optional<int64_t> first = FamilyOf(family).first_position;
  return first ? LearnedPositions{max_position_embeddings + *first, *first} : LearnedPositions{};
}

double HfConfig::embedding_scale() const {
  return FamilyOf(family).scaled_embedding ? std::sqrt(static_cast<double>(hidden_size)) : 1;
}

bool HfConfig::head_bias() const { return FamilyOf(family).head_bias; }

int64_t HfConfig::NumParameters() const {
  int64_t parameters = 0;
  for (const TensorInfo& tensor : TensorsOf(*this, Head::kVocabulary).needed)
    parameters += tensor.shape.elements();
  for (int64_t layer = 0; layer < num_hidden_layers; ++layer)
    if (const MoeSpec& layer_moe = Layer(layer).moe; layer_moe.choice_bias)
      parameters -= layer_moe.experts;
  return parameters;
}

std::string HfConfig::Digest() const {
  std::string more;
  if (adapter.used()) more += " adapters " + AdapterDigest(*this);
  if (output_bias) more += attention_bias ? " attention_bias" : " attention_out_bias";
  // Qwen2 always has them.
  if (attention_bias && !output_bias && family != Family::kQwen2) more += " qkv_bias";
  if (mlp_bias) more += " mlp_bias";
  if (!qk_norm) more += " no_qk_norm";
  if (tie_word_embeddings) more += " tied";
  if (activation == Activation::kGeluTanh) more += " gelu_tanh";
  if (activation == Activation::kGelu) more += " gelu";
  if (activation == Activation::kRelu) more += " relu";
  if (learned_positions().rows > 0) more += fmt::format(" positions {}", max_position_embeddings);
  if (scores_by_layer) more += " scores by layer";
  if (qkv_by_head) more += " qkv by head";
  if (parallel_residual) more += " parallel";
  if (local_rope) more += " local " + RopeText(*local_rope);
  const auto layers = [&](const char* what, const std::vector<bool>& chosen) {
    if (chosen.empty()) return;
    more += what;
    for (const bool one : chosen) more += one ? '1' : '0';
  };
  layers(" unturned ", unturned);
  if (sliding_window > 0) layers(fmt::format(" window {} ", sliding_window).c_str(), windowed);
  if (query_pre_attn_scalar > 0) more += fmt::format(" scalar {}", query_pre_attn_scalar);
  if (score_softcap > 0) more += fmt::format(" score_softcap {}", score_softcap);
  if (logit_softcap > 0) more += fmt::format(" logit_softcap {}", logit_softcap);
  if (embedding_multiplier != 1) more += fmt::format(" embeddings times {}", embedding_multiplier);
  if (attention_multiplier > 0) more += fmt::format(" scores times {}", attention_multiplier);
  if (residual_multiplier != 1) more += fmt::format(" residuals times {}", residual_multiplier);
  if (logits_scaling != 1) more += fmt::format(" logits over {}", logits_scaling);
  if (logit_scale != 1) more += fmt::format(" logits times {}", logit_scale);
  if (latent.used()) {
    more += fmt::format(" latent {} {} {} {} {}", latent.q_rank, latent.kv_rank, latent.plain_dims,
                        latent.turned_dims, latent.value_dims);
  }
  if (delta.key_heads > 0) {
    more += fmt::format(" delta {} {} {} {} {}", delta.key_heads, delta.value_heads, delta.key_dim,
                        delta.value_dim, delta.taps);
    layers(" recurrent ", recurrent);
  }
  if (moe.experts > 0) {
    more += fmt::format(" experts {} of {} width {}{}", moe.top_k, moe.experts, moe.width,
                        moe.renormalize ? " renormalized" : "");
    if (moe.shared_width > 0) more += fmt::format(" shared {}", moe.shared_width);
    if (moe.groups > 1) more += fmt::format(" groups {} of {}", moe.top_groups, moe.groups);
    if (moe.scale != 1) more += fmt::format(" times {}", moe.scale);
    if (moe.kind == ExpertKind::kClamped)
      more += fmt::format(" clamped {} {}", moe.gate_alpha, moe.gate_limit);
    layers(" dense ", dense_ffn);
  }
  return fmt::format(
      "{} hidden {} ffn {} layers {} heads {} kv {} head_dim {} vocab {} eps {} {}{}",
      FamilyOf(family).model_type, hidden_size, intermediate_size, num_hidden_layers,
      num_attention_heads, num_key_value_heads, head_dim, vocab_size, rms_norm_eps, RopeText(rope),
      more);
}

namespace {

// Rotations as `source` spells them, where it means the same: each version of transformers reads
// other spellings of them, and passes over the others without a word. What version 5 alone reads
// (rope_parameters) is written anew, for 4 too where it can be.
void KeepRotations(const HfConfig& config, const Json& source, Json* json) {
  if (source.contains("rope_parameters")) return;
  const Result<HfConfig> said = ParseHfConfig(source, "");
  if (!said.ok() || said->rope != config.rope || said->local_rope != config.local_rope) return;
  for (const char* key : {"rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq",
                          "partial_rotary_factor"}) {
    json->erase(key);
    if (source.contains(key)) (*json)[key] = source[key];
  }
}

}  // namespace

Json ToHfJson(const HfConfig& config, DType dtype, const Json* source) {
  Json json = source != nullptr ? *source : Json::object();
  const FamilyTable& family = FamilyOf(config.family);
  json["architectures"] = Json::array({family.model_class});
  json["model_type"] = family.model_type;
  json["hidden_size"] = config.hidden_size;
  json[family.width_key] = config.intermediate_size;
  json["num_hidden_layers"] = config.num_hidden_layers;
  json["num_attention_heads"] = config.num_attention_heads;
  json["num_key_value_heads"] = config.num_key_value_heads;
  json["head_dim"] = config.head_dim;
  json["vocab_size"] = config.vocab_size;
  json["max_position_embeddings"] = config.max_position_embeddings;
  json[family.eps_key] = config.rms_norm_eps;
  json[family.activation_key] = NameOf(config.activation);
  json["initializer_range"] = config.initializer_range;
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  json["attention_dropout"] = config.attention_dropout;
  json["use_cache"] = true;
  json.erase("auto_map");  // to Python files that are not beside the export, nor needed
  json["torch_dtype"] = dtype == DType::kBF16 ? "bfloat16" : "float32";
  json.erase("dtype");
  json.erase("rope_parameters");
  family.write(config, json);
  for (const KeyName& key : family.keys) {
    if (!json.contains(key.usual)) continue;
    json[key.file] = json[key.usual];
    json.erase(key.usual);
  }
  if (source != nullptr) KeepRotations(config, *source, &json);
  if (config.bos_token_id) json["bos_token_id"] = *config.bos_token_id;
  if (config.eos_token_ids.size() == 1) json["eos_token_id"] = config.eos_token_ids[0];
  if (config.eos_token_ids.size() > 1) json["eos_token_id"] = config.eos_token_ids;
  return json;
}

}  // namespace keel::model
