// What the body of a kernel is written with: numbers, packs of neighbours, and the words that make
// one text a device's function for nvcc and a plain one for a host's compiler.
//
// Nothing is approximate, or fused where it does not say so: sums and products are rounded one by
// one (nvcc is told so, too), exp is Keel's own polynomial. So a body is to give the same bits
// wherever it runs.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define KEEL_BODY __device__ __forceinline__
#else
#define KEEL_BODY inline
#endif

namespace keel::gpu {

KEEL_BODY uint32_t BitsOf(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}
KEEL_BODY float FloatOf(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

// Elements are float, or uint16_t for the bits of a bfloat16.
KEEL_BODY float Load(float x) { return x; }
KEEL_BODY float Load(uint16_t x) { return FloatOf(static_cast<uint32_t>(x) << 16); }
KEEL_BODY void Store(float* out, float x) { *out = x; }
// Round to nearest even; NaN stays a NaN.
KEEL_BODY void Store(uint16_t* out, float x) {
  const uint32_t bits = BitsOf(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  *out = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}
// What x is after a store in T.
template <typename T>
KEEL_BODY float Rounded(float x) {
  T stored;
  Store(&stored, x);
  return Load(stored);
}

// As kernels::Exp of common/kernels/cpu_kernels.cc: within 2 ulp on [-87.3, 88.3], below the
// smallest normal number.
KEEL_BODY float Exp(float x) {
  x = x < -87.33654f ? -87.33654f : x;
  x = x > 88.72283f ? 88.72283f : x;
  const float n = rintf(x * 1.44269504088896341f);
  float r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // 2^n in two factors, so that n = 128 does not overflow the exponent field. NaN stays in p.
  const int32_t e = n >= -200.0f && n <= 200.0f ? static_cast<int32_t>(n) : 0;
  const int32_t half = e >> 1;
  const float first = FloatOf(static_cast<uint32_t>(half + 127) << 23);
  const float second = FloatOf(static_cast<uint32_t>(e - half + 127) << 23);
  return p * first * second;
}

// a * b + c, rounded once.
KEEL_BODY float FusedMultiplyAdd(float a, float b, float c) { return fmaf(a, b, c); }

// P neighbours that are read and written at once: 16 bytes where P fills them.
template <typename T, int P>
struct alignas(sizeof(T) * P < 16 ? sizeof(T) * P : 16) Pack {
  T at[P];
};
template <int P, typename T>
KEEL_BODY Pack<T, P> LoadPack(const T* from) {
  return *reinterpret_cast<const Pack<T, P>*>(from);
}
template <int P, typename T>
KEEL_BODY void StorePack(T* to, const Pack<T, P>& pack) {
  *reinterpret_cast<Pack<T, P>*>(to) = pack;
}

KEEL_BODY int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

}  // namespace keel::gpu
