// FamilyTable: what a family of models is, by model_type: its block, and the keys of config.json
// that are its own. A family is a file in model/families/, a name in enum Family (hf_config.h) and
// its table in the list below and in that of family_table.cc. Torch-free.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>

#include "model/config/config_reader.h"
#include "model/config/hf_config.h"
#include "model/config/layer_spec.h"

namespace keel::model {

struct FamilyTable {
  Family family;
  std::string_view model_type;
  std::string_view model_class;
  int64_t positions = 2048;       // max_position_embeddings where a config.json leaves it out
  LayerSpec block = {};           // of each layer, but for what the config says of single ones
  MoeNames moe_names = {};        // with experts
  bool scaled_embedding = false;  // embeddings are multiplied by sqrt(hidden_size)
  // Of a table of learned positions, the row of a text's first token; without: there is none.
  std::optional<int64_t> first_position = {};
  bool head_bias = false;    // logits have one
  bool keeps_masks = false;  // older files hold the causal mask, and what it puts for scores
  std::span<const KeyName> keys = {};  // of a config.json, that are called otherwise elsewhere
  // Where a config.json leaves the key out; head_dim 0: hidden_size / num_attention_heads.
  bool tied = false;
  int64_t head_dim = 0;
  std::string_view eps_key = "rms_norm_eps";
  double eps = 1e-6;
  double theta = 10000;
  int64_t kv_heads = 0;         // num_key_value_heads; 0: num_attention_heads
  double dropout = 0;           // attention_dropout and residual_dropout
  double rotated = 1;           // partial_rotary_factor, which such a family may have: below 1
  bool interleaved = false;     // see RopeSpec
  bool scaled_queries = false;  // see RopeSpec::query_beta
  bool two_rotations = false;   // of layers with and without a window: see ReadTwoRopes
  // max_position_embeddings counts the context as it is after positions were stretched, whichever
  // way they are.
  bool counts_stretched = false;
  std::string_view width_key = "intermediate_size";  // of the feed-forward
  // Where a config.json leaves that out: so many rows, or so many times hidden_size; 0: it must say
  // it.
  int64_t width = 0;
  int64_t width_times = 0;
  std::string_view activation_key = "hidden_act";
  std::string_view activation = "silu";
  std::string_view old_activation = {};  // what older files call it
  // JSON of the keys that a text_config, the part of a model of texts and images that is of this
  // family, may leave out, beside those above: transformers' defaults. Empty: Keel reads no such.
  std::string_view text_defaults = {};
  // Biases, windows, rotations and softcaps: what the family has of them. Called after the sizes
  // are read.
  void (*read)(ConfigReader& reader, HfConfig& config) = nullptr;
  // The same keys for an export, over those that all families have.
  void (*write)(const HfConfig& config, Json& json) = nullptr;
};

std::span<const FamilyTable> Families();
const FamilyTable& FamilyOf(Family family);
// Null when there is none.
const FamilyTable* FindFamily(std::string_view model_type);
// "llama, qwen2, ...", of messages.
std::string FamilyNames();

extern const FamilyTable kLlamaFamily, kQwen2Family, kQwen3Family, kMistralFamily, kSmolLm3Family,
    kGemma2Family, kGemma3Family, kOlmo2Family, kOlmo3Family, kQwen3MoeFamily, kMixtralFamily,
    kPhi3Family, kGraniteFamily, kSeedOssFamily, kArceeFamily, kQwen2MoeFamily, kExaone4Family,
    kGemmaFamily, kOlmoeFamily, kGlmFamily, kGlm4Family, kErnie45Family, kMinistralFamily,
    kCwmFamily, kInternLm3Family, kGraniteHybridFamily, kHunyuanFamily, kGlm4MoeFamily,
    kDots1Family, kMiniMaxM2Family, kDeepseekV2Family, kDeepseekV3Family, kGlm4MoeLiteFamily,
    kYoutuFamily, kGptOssFamily, kQwen3NextFamily, kQwen35Family, kQwen35MoeFamily,
    kMinistral3Family, kCohereFamily, kCohere2Family, kStarcoder2Family, kStableLmFamily,
    kNemotronFamily, kGptNeoxFamily, kHeliumFamily, kJais2Family, kVaultGemmaFamily,
    kSolarOpenFamily, kGpt2Family, kGptNeoFamily, kOptFamily, kGptBigCodeFamily, kPhiFamily,
    kGptJFamily;

// Of the family files.

// What GPT-2 and those after it call sizes and dropouts.
inline constexpr KeyName kGpt2Keys[] = {
    {"n_embd", "hidden_size"},           {"n_head", "num_attention_heads"},
    {"n_layer", "num_hidden_layers"},    {"n_positions", "max_position_embeddings"},
    {"attn_pdrop", "attention_dropout"}, {"resid_pdrop", "residual_dropout"}};
// Keys that say nothing of what is computed.
void PassOver(ConfigReader& reader, std::initializer_list<const char*> keys);
// Those of them that these families have of transformers' other heads, and of its training.
void PassOverGptHeads(ConfigReader& reader);

// max_position_embeddings where the file says it, else 0: how a stretched rotation turns may follow
// from it, and each family of transformers has a default of its own.
int64_t PositionsSaid(ConfigReader& reader, const HfConfig& config);
// Of a family with a head_dim of its own that takes hidden_size / num_attention_heads where a file
// says null.
void TakeHeadDimOfNull(ConfigReader& reader, HfConfig& config);
// Of a family whose heads are parts of hidden_size whatever head_dim a file names.
void RefuseOtherHeadDim(ConfigReader& reader, const HfConfig& config);
// Of a family whose heads have keys of their own, and are parts of hidden_size.
void RefuseFewerKeyHeads(ConfigReader& reader, const HfConfig& config);
// Of such a family, the keys that its files do not have; and that of the main rotation's base.
void EraseHeadKeys(Json& json);
// Of a family whose positions are learned, or turn as its own keys say: a rotation that a file
// names otherwise.
void RefuseRotation(ConfigReader& reader, const HfConfig& config);
// The main rotation, where all layers have one; see ReadRope. `rotated`: the part of a head's dims
// that turns where the file does not say it, in place of the family's; 0: that.
void ReadMainRope(ConfigReader& reader, HfConfig& config, double rotated = 0);
void WriteMainRope(const HfConfig& config, Json& json);
// The same of a family whose positions transformers stretches where the file says nothing of them:
// it must say something, and an export says it as version 5 does.
void ReadNeededRope(ConfigReader& reader, HfConfig& config);
void WriteNeededRope(const HfConfig& config, Json& json);
// Rotations of layers without and with a window: rope_parameters {full_attention: {...},
// sliding_attention: {...}} as transformers v5 writes them. False when the file has no
// rope_parameters, and nothing was read.
bool ReadTwoRopes(ConfigReader& reader, HfConfig& config, double local_theta);
void WriteTwoRopes(const HfConfig& config, Json& json);
// A softcap: a number above 0, or null for none.
double ReadSoftcap(ConfigReader& reader, std::string_view key, double fallback);
// Reads sliding_window and layer_types ("full_attention" or "sliding_attention" each); without
// layer_types the layers for which `by_default` holds have the window. Without a window none has;
// `fallback` is that of a file that leaves the key out, which is not one that says null.
void ReadWindows(ConfigReader& reader, HfConfig& config,
                 const std::function<bool(int64_t layer)>& by_default, int64_t fallback = 0);
// What transformers takes where files of Gemma, OLMo, EXAONE and Qwen leave sliding_window out.
inline constexpr int64_t kUsualWindow = 4096;
// The same keys where use_sliding_window says that they are not to be used: layer_types may then
// name no sliding_attention.
void ReadNoWindows(ConfigReader& reader);
void WriteWindows(const HfConfig& config, Json& json);
// Layers without the window are not turned.
void TurnWindowsAlone(HfConfig& config);
// How many experts there are (num_experts or num_local_experts, which must agree) and how many of
// them a token takes, and the keys of the load-balancing loss, whose coefficient is `balance` where
// it is left out. Width, renormalize and dense_ffn are the family's to set.
void ReadExperts(ConfigReader& reader, HfConfig& config, const MoeSpec& fallback,
                 double balance = 0.001);
// But for the number of experts, whose key is the family's.
void WriteExperts(const HfConfig& config, Json& json);
// decoder_sparse_step, of which every so many-th layer has experts, unless mlp_only_layers names
// it.
void ReadSparseStep(ConfigReader& reader, HfConfig& config);
void WriteSparseStep(const HfConfig& config, Json& json);
// DeepSeek-V3's router and the experts behind it, as configurations of its kind name them (with
// group_by_best DeepSeek-V2's groups, by topk_method):
// n_routed_experts (or num_local_experts), n_shared_experts, moe_intermediate_size, n_group,
// topk_group, norm_topk_prob, routed_scaling_factor, first_k_dense_replace. What `fallback` has as
// 0 must be there; its shared_width counts the shared experts.
void ReadRoutedExperts(ConfigReader& reader, HfConfig& config, const MoeSpec& fallback,
                       int64_t dense_layers);
void WriteRoutedExperts(const HfConfig& config, Json& json);
// Multi-head latent attention: q_lora_rank (null: none), kv_lora_rank, qk_nope_head_dim,
// qk_rope_head_dim, v_head_dim, and the rotation of the dims that turn, with what it multiplies
// scores by. Sets head_dim, attention_bias and output_bias. `fallback`: of a file that leaves a key
// out.
void ReadLatentAttention(ConfigReader& reader, HfConfig& config, const LatentSpec& fallback);
void WriteLatentAttention(const HfConfig& config, Json& json);
// num_nextn_predict_layers: layers behind the others, which files may have and no model here.
void ReadExtraLayers(ConfigReader& reader, HfConfig& config, int64_t fallback);
// sliding_window alone, a number or null: of all layers.
void ReadOneWindow(ConfigReader& reader, HfConfig& config);
void WriteOneWindow(const HfConfig& config, Json& json);
// An integer where the value is one: transformers refuses 32.0 where it expects 32.
Json WholeNumber(double value);
// attention_bias: of q, k and v, and of the output too.
void ReadAttentionBias(ConfigReader& reader, HfConfig& config);
// FamilyTable's read and write of a family with the main rotation and that bias, and no more.
void ReadRopeAndBias(ConfigReader& reader, HfConfig& config);
void WriteRopeAndBias(const HfConfig& config, Json& json);
// mlp_bias: of the feed-forward's matrices.
void ReadMlpBias(ConfigReader& reader, HfConfig& config);
void WriteMlpBias(const HfConfig& config, Json& json);
// Both, with no more.
void ReadRopeAndBiases(ConfigReader& reader, HfConfig& config);
void WriteRopeAndBiases(const HfConfig& config, Json& json);

}  // namespace keel::model
