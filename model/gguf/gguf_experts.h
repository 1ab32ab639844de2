// What a GGUF file says of experts, in config.json.
#pragma once

#include <cstdint>

#include "common/json.h"
#include "common/status.h"
#include "model/gguf/gguf_families.h"

namespace keel::model {

inline constexpr int64_t kMostGgufExperts = 4096;

// Experts in all layers; in none, whose keys must say so then. `ffn`: a dense layer's width.
// Returns their number.
Result<int64_t> ReadGgufExperts(GgufKeys& keys, const GgufExperts& own, int64_t ffn, Json* config);

}  // namespace keel::model
