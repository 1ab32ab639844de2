// HfConfig: a decoder's shape, from a Hugging Face config.json (v4 and v5 spellings) or from the
// same keys in Keel's YAML. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "common/tensors/dtype.h"
#include "model/config/adapter_spec.h"
#include "model/config/layer_spec.h"
#include "model/config/rope_spec.h"

namespace keel::model {

// In the order of Families() (model/families/).
enum class Family {
  kLlama,
  kQwen2,
  kQwen3,
  kMistral,
  kSmolLm3,
  kGemma2,
  kGemma3,
  kOlmo2,
  kOlmo3,
  kQwen3Moe,
  kMixtral,
  kPhi3,
  kGranite,
  kSeedOss,
  kArcee,
  kQwen2Moe,
  kExaone4,
  kGemma,
  kOlmoe,
  kGlm,
  kGlm4,
  kErnie45,
  kMinistral,
  kCwm,
  kInternLm3,
  kGraniteHybrid,
  kHunyuan,
  kGlm4Moe,
  kDots1,
  kMiniMaxM2,
  kDeepseekV2,
  kDeepseekV3,
  kGlm4MoeLite,
  kYoutu,
  kGptOss,
  kQwen3Next,
  kQwen35,
  kQwen35Moe,
  kCohere,
  kCohere2,
  kStarcoder2,
  kStableLm,
  kNemotron,
  kGptNeox,
  kMinistral3,
  kHelium,
  kJais2,
  kVaultGemma,
  kSolarOpen,
  kGpt2,
  kGptNeo,
  kOpt,
  kGptBigCode,
  kPhi,
  kGptJ
};

// A table of learned positions, of which row first + p is added to the embedding of a text's token
// p.
struct LearnedPositions {
  int64_t rows = 0;  // 0: there is none
  int64_t first = 0;
};

struct HfConfig {
  Family family = Family::kLlama;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;          // of norms of either kind, whatever the key is called
  RopeSpec rope;                       // of most layers
  LatentSpec latent;                   // unused: attention is the usual one
  std::optional<RopeSpec> local_rope;  // of the layers with a window, where theirs is another
  std::vector<bool> unturned;          // layers whose queries and keys are not turned; empty: none
  int64_t sliding_window = 0;          // tokens; 0: none
  std::vector<bool> windowed;          // layers that have it; empty: none
  DeltaSpec delta;                     // of the layers that mix by the delta rule
  std::vector<bool> recurrent;         // these; empty: none
  Activation activation = Activation::kSilu;
  double query_pre_attn_scalar = 0;  // scores are divided by its root; 0: by head_dim's
  double score_softcap = 0;          // see LayerSpec; 0: none
  double logit_softcap = 0;          // of the vocabulary's logits
  // Granite's: of embeddings, of scores (0: as above), of what is added to the stream, and what
  // logits are divided by.
  double embedding_multiplier = 1;
  double attention_multiplier = 0;
  double residual_multiplier = 1;
  double logits_scaling = 1;
  double logit_scale = 1;          // Cohere's, which logits are multiplied by
  bool scores_by_layer = false;    // those of layer i are divided by i + 1
  bool qkv_by_head = false;        // whatever the family's block says (LayerSpec::qkv)
  bool parallel_residual = false;  // see LayerSpec::parallel
  MoeSpec moe;                     // of the layers with experts
  std::vector<bool> dense_ffn;     // layers without experts in a model that has them; empty: none
  // With output_router_logits training adds router_aux_loss_coef times the load-balancing loss; see
  // model/ops/router_load.h.
  bool output_router_logits = false;
  double router_aux_loss_coef = 0;
  // Behind the others, that predict further tokens: files may have their tensors, which are left
  // out.
  int64_t extra_layers = 0;
  bool tie_word_embeddings = false;
  bool attention_bias = false;  // on q, k and v; Qwen2 always has it
  bool output_bias = false;     // on o too: Llama and Qwen3 with attention_bias
  bool mlp_bias = false;        // on the matrices of feed-forwards without experts
  bool qk_norm = true;          // false: without that of the family's block
  // That the file names, for an export: no dropout is computed.
  double attention_dropout = 0;
  double residual_dropout = 0;
  double other_dropout = 0;  // the largest of any other kind
  double initializer_range = 0.02;
  double embedding_range = 0;  // of embeddings; 0: the same
  // What a run or a directory of adapters puts beside the weights; in no config.json.
  AdapterSpec adapter;
  std::optional<DType> dtype;  // of the weights in the directory
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;  // a number or a list in the file; null or missing: none

  // Of a head's dims those among which rotations find the ones that turn.
  int64_t rope_dims() const { return latent.used() ? latent.turned_dims : head_dim; }
  // Weights in the matrices of a layer's attention that belong to so many heads, and to all. In
  // floating point, which does not overflow.
  double AttentionWeights(int64_t heads, int64_t kv_heads) const;
  // The same of a layer that mixes by the delta rule, of so many key heads.
  double DeltaWeights(int64_t key_heads) const;
  // What layer `layer` is: the family's block with what the keys above say of this layer.
  LayerSpec Layer(int64_t layer) const;
  LearnedPositions learned_positions() const;
  // What the family multiplies embeddings by, whatever the keys say; 1 with most.
  double embedding_scale() const;
  // Whether a bias is added to logits.
  bool head_bias() const;
  // Parameters; a tied embedding counts once, and constants do not.
  int64_t NumParameters() const;
  // What the load-balancing loss is multiplied by; 0: training has none.
  double balance_coefficient() const {
    return moe.experts > 0 && output_router_logits ? router_aux_loss_coef : 0;
  }
  // The keys that decide whether weights fit, as canonical JSON text: "checkpoint of another
  // model".
  std::string Digest() const;
};

// `where` stands first in messages ("model/config.json"). kInvalidData names the key, what was
// expected and what was found; a model_type without a table in model/families/ is refused, and so
// is each key that changes what some family computes and that this one does not have; sizes that no
// model has, before anything depends on them.
Result<HfConfig> ParseHfConfig(const Json& json, std::string_view where);

// Keys that the family of `json` does not read: those that look like one that it does, and that is
// not there, with that one, and others. Keys of files that are known to change nothing are not
// among them.
struct UnreadKeys {
  std::vector<std::pair<std::string, std::string>> misspelt;
  std::vector<std::string> others;
};
UnreadKeys UnreadKeysOf(const Json& json);

// `eos_token_id` alone: of a generation_config.json, which has it too.
Result<std::vector<int64_t>> ParseEosTokenIds(const Json& json, std::string_view where);

// Special ids of a config.json or generation_config.json that no token of `vocab_size` has: a text
// with one could be neither begun, nor ended, nor computed. A pad_token_id of -1 is none, as older
// files write it. kInvalidData names the key.
Status CheckSpecialIds(const Json& json, int64_t vocab_size, std::string_view where);

// config.json for an export: v4 spellings, which transformers v5 still reads. `source`, when given,
// is the original config, whose other keys are kept, but for auto_map, and whose rotations stay as
// it spells them.
Json ToHfJson(const HfConfig& config, DType dtype, const Json* source = nullptr);

}  // namespace keel::model
