// GgufConfig: what a GGUF file says of its model, as Hugging Face's config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "common/dtype.h"
#include "common/json.h"
#include "common/status.h"
#include "model/gguf/gguf_file.h"

namespace keel::model {

enum class GgufFamily { kLlama, kQwen2, kQwen3 };
std::string_view GgufFamilyName(GgufFamily family);  // as in general.architecture

struct GgufConfig {
  GgufFamily family = GgufFamily::kLlama;
  int64_t head_dim = 0;
  Json config;      // of config.json, without the dtype
  Json generation;  // of generation_config.json
};

// The tensor that holds the scaling of Llama 3's rotation, [head_dim / 2]: it becomes
// `rope_scaling`, and no tensor of the model.
inline constexpr std::string_view kRopeFactors = "rope_freqs.weight";

// `rope_factors`: the values of kRopeFactors, empty when there is none. kInvalidData names the key
// that is missing, wrong or not understood: every key of the architecture is, or is refused.
Result<GgufConfig> ReadGgufConfig(const GgufFile& file, const std::vector<float>& rope_factors);

}  // namespace keel::model
