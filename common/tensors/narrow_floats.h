// Formats of less than 16 bits in which published weights are quantized, as fp32. Exact.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace keel {

// 4 bits of exponent, 3 of mantissa, no infinity; NaN is 0x7f and 0xff (Micikevicius et al. 2022).
inline float Float8E4M3ToFloat(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
  const uint32_t exponent = (bits >> 3) & 0xfu;
  const uint32_t mantissa = bits & 7u;
  if ((bits & 0x7fu) == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 120u) << 23) | (mantissa << 20));
  return std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-9f) |
                              sign);
}

// The elements of MXFP4, 2 bits of exponent and 1 of mantissa, and the scale that 32 of them share
// (OCP Microscaling Formats, 2023).
inline constexpr std::array<float, 16> kFloat4E2M1 = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                                                      4.0f,  6.0f,  -0.0f, -0.5f, -1.0f, -1.5f,
                                                      -2.0f, -3.0f, -4.0f, -6.0f};
inline float Float8E8M0ToFloat(uint8_t bits) {
  if (bits == 0xff) return std::numeric_limits<float>::quiet_NaN();
  if (bits == 0) return 0x1p-127f;
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 23);
}

}  // namespace keel
