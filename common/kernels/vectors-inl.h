// Vectors of kLanes floats, and numbers of both types as such. Included by the *-inl.h beside it
// once per instruction set, inside a namespace and between target pragmas; so no include guard.

typedef float Vector __attribute__((vector_size(4 * kLanes)));
typedef float VectorAt __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint16_t HalvesAt __attribute__((vector_size(2 * kLanes), aligned(2), may_alias));

inline Vector Load(const float* p) { return *reinterpret_cast<const VectorAt*>(p); }
inline Vector Load(const uint16_t* p) {
#if KEEL_KERNEL_LANES == 16
  // GCC splits the conversion below in two here.
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return (Vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);  // NOLINT
#else
  return reinterpret_cast<Vector>(
      __builtin_convertvector(*reinterpret_cast<const HalvesAt*>(p), Words) << 16);
#endif
}

// The first n < kLanes elements, then zeros.
template <typename T>
inline Vector LoadPart(const T* p, int64_t n) {
  T padded[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) padded[i] = p[i];
  return Load(padded);
}

inline void Store(float* p, float x) { *p = x; }
inline void Store(uint16_t* p, float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  *p = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

inline float Widen(float x) { return x; }
inline float Widen(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline Vector Splat(float x) { return Vector{} + x; }
