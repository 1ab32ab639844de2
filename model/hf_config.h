// HfConfig: a decoder's shape, from a Hugging Face config.json (v4 and v5 spellings) or from the
// same keys in Keel's YAML. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/dtype.h"
#include "common/json.h"
#include "common/status.h"

namespace keel::model {

enum class Family { kLlama, kQwen2, kQwen3 };

// Llama-3's frequency scaling (rope_type "llama3").
struct Llama3RopeScaling {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;
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
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  std::optional<Llama3RopeScaling> rope_scaling;
  bool tie_word_embeddings = false;
  bool attention_bias = false;  // on q, k and v; Qwen2 always has it
  bool output_bias = false;     // on o too: Llama and Qwen3 with attention_bias
  double initializer_range = 0.02;
  std::optional<DType> dtype;  // of the weights in the directory
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;  // a number or a list in the file; null or missing: none

  bool qk_norm() const { return family == Family::kQwen3; }
  // Parameters; a tied embedding counts once.
  int64_t NumParameters() const;
  // The keys that decide whether weights fit, as canonical JSON text: "checkpoint of another
  // model".
  std::string Digest() const;
};

// `where` stands first in messages ("model/config.json"). kInvalidData names the key, what was
// expected and what was found; unsupported features (sliding windows, other rope types, mlp_bias,
// other activations) are refused by name; sizes that no model has, before anything depends on them.
Result<HfConfig> ParseHfConfig(const Json& json, std::string_view where);

// `eos_token_id` alone: of a generation_config.json, which has it too.
Result<std::vector<int64_t>> ParseEosTokenIds(const Json& json, std::string_view where);

// Special ids of a config.json or generation_config.json that no token of `vocab_size` has: a text
// with one could be neither begun, nor ended, nor computed. A pad_token_id of -1 is none, as older
// files write it. kInvalidData names the key.
Status CheckSpecialIds(const Json& json, int64_t vocab_size, std::string_view where);

// config.json for an export: v4 spellings, which transformers v5 still reads. `source`, when given,
// is the original config whose other keys are kept.
Json ToHfJson(const HfConfig& config, DType dtype, const Json* source = nullptr);

}  // namespace keel::model
