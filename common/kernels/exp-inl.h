// The exponential of the kernels for hosts, which a compiler vectorises.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace keel::kernels {

// exp in fp32 within 2 ulp on [-87.3, 88.3] (below: the smallest normal; above: +inf soon after).
// Range reduction to [-ln2/2, ln2/2] and a degree-6 polynomial. NaN gives NaN.
[[gnu::always_inline]] inline float Exp(float x) {
  x = x < -87.33654f ? -87.33654f : x;
  x = x > 88.72283f ? 88.72283f : x;
  const float n = std::rint(x * 1.44269504088896341f);
  float r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // 2^n in two factors, so that n = 128 does not overflow the exponent field.
  const int32_t e = static_cast<int32_t>(n);
  const int32_t e1 = e >> 1;
  const int32_t e2 = e - e1;
  const float s1 = std::bit_cast<float>(static_cast<uint32_t>(e1 + 127) << 23);
  const float s2 = std::bit_cast<float>(static_cast<uint32_t>(e2 + 127) << 23);
  return p * s1 * s2;
}

}  // namespace keel::kernels
