// Numbers of both types, and functions that are compiled once for each instruction set: what the
// kernels that rely on the compiler's vectoriser share.
#pragma once

#include <bit>
#include <cstdint>

// Each entry point is compiled three times and resolved at load time.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define KEEL_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define KEEL_CLONES
#endif
#define KEEL_INLINE [[gnu::always_inline]] inline
// The two element types of each entry point, as specialisations that carry the clones.
#define KEEL_FOR_BOTH(DEFINE) DEFINE(float) DEFINE(uint16_t)

namespace keel::kernels::elements {

KEEL_INLINE float Load(float x) { return x; }
KEEL_INLINE float Load(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

KEEL_INLINE void Store(float* out, float x) { *out = x; }
// Round to nearest even; NaN stays a NaN.
KEEL_INLINE void Store(uint16_t* out, float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  *out = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

}  // namespace keel::kernels::elements
