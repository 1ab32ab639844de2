// GgufFamily: a kind of models in GGUF files, as data: what it is called on both sides, where its
// tensors and its settings go.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/json.h"
#include "common/status.h"
#include "model/gguf/gguf_file.h"
#include "model/gguf/gguf_keys.h"
#include "model/gguf/gguf_rope.h"

namespace keel::model {

enum class GgufFamily {
  kLlama,
  kMixtral,
  kQwen2,
  kQwen2Moe,
  kQwen3,
  kQwen3Moe,
  kGemma2,
  kGemma3,
  kPhi3,
  kSmolLm3,
  kOlmo2,
  kOlmo3,
  kGranite,
  kSeedOss,
  kArcee,
  kExaone4,
  kGemma,
  kOlmoe,
};

// Without the layer, and without ".weight". No `hf`: a layer of this family has no such tensor.
struct GgufRenamed {
  std::string_view gguf, hf;
};

// How a family with experts has them.
struct GgufExperts {
  std::span<const GgufRenamed> names = {};  // of one expert; none: every layer is dense
  std::string_view room = "mlp";
  bool own_width = true;     // moe_intermediate_size; else intermediate_size is an expert's
  bool renormalized = true;  // whether the chosen experts' weights are made to add up to one
  bool shared = false;       // one more, which every token goes through
};

// What a family's `read` sees, when the sizes are in `config` already.
struct GgufReading {
  const GgufFile& file;
  GgufKeys& keys;
  Json& config;

  int64_t Size(const char* key) const { return config[key].get<int64_t>(); }
  bool HasTensor(std::string_view name) const { return FindTensor(file, name) != nullptr; }
};

struct GgufFamilyTable {
  GgufFamily family;
  std::string_view architecture;  // general.architecture
  std::string_view model_type, model_class;
  std::span<const GgufRenamed> names = {};  // of a layer, beside Llama's or in their place
  GgufExperts experts = {};
  bool mixed_heads = false;  // rows of q and k in ggml's order of the pairs that turn
  bool one_added = false;    // to the weights of norms
  std::string_view activation = "silu";
  std::string_view bias_key = "attention_bias";  // of q, k and v; none: no key says it
  Status (*rope)(GgufKeys& keys, const GgufRotation& rotation, Json* config) = ReadGgufRope;
  std::span<const std::string_view> rope_tensors = kScaledTensors;  // which `rope` reads
  // What it alone says, or takes for granted, as llama.cpp has it.
  Status (*read)(GgufReading reading) = nullptr;
};

const GgufFamilyTable& GgufTableOf(GgufFamily family);
// By general.architecture, and the key that tells apart what only Hugging Face has two names for.
Result<GgufFamily> ReadGgufFamily(const GgufMetadata& metadata);

}  // namespace keel::model
