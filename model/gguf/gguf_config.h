// GgufConfig: what a GGUF file says of its model, as Hugging Face's config.json.
#pragma once

#include <cstdint>

#include "common/json.h"
#include "common/status.h"
#include "model/gguf/gguf_families.h"
#include "model/gguf/gguf_file.h"
#include "model/gguf/gguf_rope.h"

namespace keel::model {

struct GgufConfig {
  GgufFamily family = GgufFamily::kLlama;
  int64_t head_dim = 0;
  int64_t experts = 0;  // of each layer; 0: dense
  Json config;          // of config.json, without the dtype
  Json generation;      // of generation_config.json
};

// kInvalidData where the file is a part of a model, or what changes another.
Status CheckWholeModel(const GgufMetadata& metadata);

// `factors`: those of the file's tensors. kInvalidData names the key or the tensor that is missing,
// wrong or not understood: every key of the architecture is, or is refused.
Result<GgufConfig> ReadGgufConfig(const GgufFile& file, const GgufRopeFactors& factors);

}  // namespace keel::model
