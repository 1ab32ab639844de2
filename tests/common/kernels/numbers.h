// The two kinds of numbers that kernels for hosts take, as fp32 and back.
#pragma once

#include <bit>
#include <cstdint>

namespace keel::kernels {

inline float Widen(float x) { return x; }
inline float Widen(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }
template <typename T>
T Narrow(float x) {
  if constexpr (sizeof(T) == 4) {
    return x;
  } else {
    const auto bits = std::bit_cast<uint32_t>(x);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
}

}  // namespace keel::kernels
