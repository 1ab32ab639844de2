// Floats as the bytes of weights that a command writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/tensors/float_convert.h"

namespace keel::tools {

class StoredFloats {
 public:
  // The values in `dtype`, fp32 or bf16 (nearest, ties to even); nullopt when one is not finite
  // there. Good until the next call, and no longer than `values`.
  std::optional<std::span<const std::byte>> As(DType dtype, std::span<const float> values) {
    std::span<const std::byte> bytes = std::as_bytes(values);
    if (dtype == DType::kBF16) {
      rounded_.resize(values.size());
      for (size_t i = 0; i < values.size(); ++i) rounded_[i] = FloatToBFloat16(values[i]);
      bytes = std::as_bytes(std::span(rounded_));
    }
    if (!AllFinite(bytes.data(), std::ssize(values), dtype)) return std::nullopt;
    return bytes;
  }

 private:
  std::vector<uint16_t> rounded_;
};

}  // namespace keel::tools
