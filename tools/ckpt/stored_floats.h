// Floats as the bytes of weights that a command writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "common/tensors/float_convert.h"

namespace keel::tools {

class StoredFloats {
 public:
  // The values in `dtype`, fp32, bf16 or fp16 (nearest, ties to even); nullopt when one is not
  // finite there. Good until the next call, and no longer than `values`.
  std::optional<std::span<const std::byte>> As(DType dtype, std::span<const float> values) {
    std::span<const std::byte> bytes = std::as_bytes(values);
    if (dtype == DType::kBF16 || dtype == DType::kF16) {
      rounded_.resize(values.size());
      for (size_t i = 0; i < values.size(); ++i)
        rounded_[i] =
            dtype == DType::kBF16 ? FloatToBFloat16(values[i]) : FloatToFloat16(values[i]);
      bytes = std::as_bytes(std::span(rounded_));
    }
    if (std::ssize(bytes) != std::ssize(values) * DTypeSize(dtype)) return std::nullopt;
    if (!AllFinite(bytes.data(), std::ssize(values), dtype)) return std::nullopt;
    return bytes;
  }

 private:
  std::vector<uint16_t> rounded_;
};

// Values of such a file, F32, BF16, F16 or F64, as fp32; as many as `to` has.
inline void ToFloats(std::span<const std::byte> from, DType dtype, std::span<float> to) {
  if (dtype == DType::kF32) {
    std::memcpy(to.data(), from.data(), from.size());
    return;
  }
  for (size_t i = 0; i < to.size(); ++i)
    ConvertElement(&from[i * static_cast<size_t>(DTypeSize(dtype))], dtype,
                   reinterpret_cast<std::byte*>(&to[i]), DType::kF32);
}

}  // namespace keel::tools
