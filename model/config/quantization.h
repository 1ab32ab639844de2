// How the weights of a Hugging Face directory are quantized, by its config.json's
// quantization_config. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/json.h"
#include "common/status.h"

namespace keel::model {

struct Quantization {
  enum class Method {
    // Matrices F8_E4M3 with scales beside them, by which they are multiplied: of blocks, of rows,
    // or one a matrix, in DeepSeek-V3's files and in vLLM's compressed-tensors. X.weight has
    // X.weight_scale_inv or X.weight_scale.
    kFp8,
    // gpt-oss's experts: X of 4 bits each, two a byte, in X_blocks [.., rows, groups, 16], and a
    // power of two for each group in X_scales [.., rows, groups]; X is their transpose.
    kMxfp4,
  };
  Method method = Method::kFp8;
  std::string name = {};   // as the file calls it: quant_method
  int64_t block_rows = 0;  // of kFp8, where scales are of blocks; else 0
  int64_t block_columns = 0;
};

// Nothing where config.json has none. kInvalidData names the key of what is not understood;
// `where` stands first.
Result<std::optional<Quantization>> ReadQuantization(const Json& config, std::string_view where);

// "fp8, mxfp4 and compressed-tensors of format float-quantized", of messages.
std::string QuantizationNames();

}  // namespace keel::model
