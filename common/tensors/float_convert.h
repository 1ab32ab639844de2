// Conversion between the float formats of weights, round to nearest even.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/tensors/dtype.h"

namespace keel {

inline float BFloat16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t FloatToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return static_cast<uint16_t>((bits >> 16) | 0x40u);  // quiet NaN
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float Float16ToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // subnormal or zero; exact
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

// Of 2^16 and more, and what rounds to it, infinity.
inline uint16_t FloatToFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);  // NaN
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // below 2^-14: multiples of 2^-24, which the sum rounds to
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

inline bool CanConvert(DType from, DType to) {
  const bool source =
      from == DType::kF64 || from == DType::kF32 || from == DType::kBF16 || from == DType::kF16;
  return from == to || (source && (to == DType::kF32 || to == DType::kBF16));
}

// One element; `CanConvert(from, to)` and from != to. A double goes through float, as in PyTorch.
inline void ConvertElement(const std::byte* source, DType from, std::byte* destination, DType to) {
  float value = 0;
  if (from == DType::kF32) {
    std::memcpy(&value, source, sizeof(value));
  } else if (from == DType::kF64) {
    double wide = 0;
    std::memcpy(&wide, source, sizeof(wide));
    value = static_cast<float>(wide);
  } else {
    uint16_t bits = 0;
    std::memcpy(&bits, source, sizeof(bits));
    value = from == DType::kBF16 ? BFloat16ToFloat(bits) : Float16ToFloat(bits);
  }
  if (to == DType::kF32) {
    std::memcpy(destination, &value, sizeof(value));
  } else {
    const uint16_t bits = FloatToBFloat16(value);
    std::memcpy(destination, &bits, sizeof(bits));
  }
}

// Says whether none of `count` elements is NaN or infinite, a double as the float that it becomes;
// always, of a dtype that knows neither.
inline bool AllFinite(const std::byte* data, int64_t count, DType dtype) {
  // An exponent of ones alone. Read by memcpy: files place tensors at any byte.
  const auto none_has = [&]<typename Bits>(Bits exponent) {
    bool found = false;
    for (int64_t i = 0; i < count; ++i) {
      Bits bits;
      std::memcpy(&bits, data + i * static_cast<int64_t>(sizeof(Bits)), sizeof(Bits));
      found |= (bits & exponent) == exponent;
    }
    return !found;
  };
  if (dtype == DType::kF32) return none_has(uint32_t{0x7f800000});
  if (dtype == DType::kBF16) return none_has(uint16_t{0x7f80});
  if (dtype == DType::kF16) return none_has(uint16_t{0x7c00});
  if (dtype == DType::kF64) {
    bool finite = true;
    for (int64_t i = 0; i < count; ++i) {
      double wide = 0;
      std::memcpy(&wide, data + i * static_cast<int64_t>(sizeof(wide)), sizeof(wide));
      finite &= std::isfinite(static_cast<float>(wide));
    }
    return finite;
  }
  return true;
}

}  // namespace keel
