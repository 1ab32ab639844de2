// What the settings of families with more than Llama's block become in config.json.
#pragma once

#include <cstdint>

#include "common/json.h"
#include "common/status.h"
#include "model/gguf/gguf_config.h"
#include "model/gguf/gguf_keys.h"

namespace keel::model {

// Experts in all layers, or none, whose keys must say so then. `ffn`: a dense layer's width.
// Returns their number. Mixtral's or Qwen3-MoE's keys go to `config`.
Result<int64_t> ReadGgufExperts(GgufKeys& keys, GgufFamily family, int64_t ffn, Json* config);

// Windows, softcaps, the scale of scores and the second rotation of Gemma 2 or 3. `config` has the
// sizes already. What llama.cpp takes for granted, and files do not say, is as it has it.
Status ReadGgufGemma(GgufKeys& keys, GgufFamily family, Json* config);

}  // namespace keel::model
