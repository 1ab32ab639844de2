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

enum class GgufFamily { kLlama, kQwen2, kQwen3, kQwen3Moe, kGemma2, kGemma3, kMixtral };
std::string_view GgufFamilyName(GgufFamily family);  // as in general.architecture

inline constexpr int64_t kMostGgufExperts = 4096;

struct GgufConfig {
  GgufFamily family = GgufFamily::kLlama;
  int64_t head_dim = 0;
  int64_t experts = 0;  // of each layer; 0: dense
  Json config;          // of config.json, without the dtype
  Json generation;      // of generation_config.json
};

// The tensor that holds the scaling of Llama 3's rotation, [head_dim / 2]: it becomes
// `rope_scaling`, and no tensor of the model.
inline constexpr std::string_view kRopeFactors = "rope_freqs.weight";

// A float32 of the file as the number that was written: 1e-05, not 9.99999974e-06.
double GgufShortest(double value);

// `rope_factors`: the values of kRopeFactors, empty when there is none. kInvalidData names the key
// that is missing, wrong or not understood: every key of the architecture is, or is refused.
Result<GgufConfig> ReadGgufConfig(const GgufFile& file, const std::vector<float>& rope_factors);

}  // namespace keel::model
