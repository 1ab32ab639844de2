// The kernels of cpu_decode.h in terms of vectors of kLanes floats. Included by cpu_decode.cc once
// per instruction set, inside a namespace and between target pragmas; so no include guard, no
// lambdas (they would not inherit the target), and everything is inline in the same namespace.

#include "common/kernels/vectors-inl.h"

// How kStep elements of a row of x and of a row of w are multiplied and added.
template <typename T>
struct Multiply {
  static constexpr int64_t kStep = kLanes;
  typedef Vector Operand;
  static inline Operand LoadOperand(const T* p) { return Load(p); }
  static inline Operand LoadRest(const T* p, int64_t n) { return LoadPart(p, n); }
  static inline Vector Accumulate(Vector sum, Operand a, Operand b) { return a * b + sum; }
};

#ifdef KEEL_DECODE_BF16
template <>
struct Multiply<uint16_t> {
  static constexpr int64_t kStep = 2 * kLanes;
  typedef __m512bh Operand;
  static inline Operand LoadOperand(const uint16_t* p) {
    return (__m512bh)_mm512_loadu_si512(p);  // NOLINT: the intrinsic type's only conversion
  }
  static inline Operand LoadRest(const uint16_t* p, int64_t n) {
    return (__m512bh)_mm512_maskz_loadu_epi16((1u << n) - 1u, p);  // NOLINT
  }
  static inline Vector Accumulate(Vector sum, Operand a, Operand b) {
    return (Vector)_mm512_dpbf16_ps((__m512)sum, a, b);  // NOLINT
  }
};
#endif

// Lane j of the result is the sum of v[j]'s lanes, for kLanes vectors: halves are added to halves,
// level by level, two vectors sharing one addition.
inline Vector SumEach(Vector* v) {
#if KEEL_KERNEL_LANES == 16
  for (int i = 0; i < 8; ++i) {
    const Vector a = v[i], b = v[i + 8];
    v[i] =
        __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
        __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  }
  for (int i = 0; i < 4; ++i) {
    const Vector a = v[i], b = v[i + 4];
    v[i] =
        __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
        __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  }
  for (int i = 0; i < 2; ++i) {
    const Vector a = v[i], b = v[i + 2];
    v[i] =
        __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
        __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  }
  const Vector a = v[0], b = v[1];
  return __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
         __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
#else
  for (int i = 0; i < 4; ++i) {
    const Vector a = v[i], b = v[i + 4];
    v[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11) +
           __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
  }
  for (int i = 0; i < 2; ++i) {
    const Vector a = v[i], b = v[i + 2];
    v[i] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13) +
           __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
  }
  const Vector a = v[0], b = v[1];
  return __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14) +
         __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
#endif
}

// Dot products of kRows rows of x with kColumns rows of w; kRows * kColumns == kLanes. Rows
// `ahead` elements further in w are asked for on the way.
template <typename T, int kRows, int kColumns, bool kPrefetch>
inline Vector DotTile(const T* const* x, const T* const* w, int64_t k, int64_t ahead) {
  typedef Multiply<T> M;
  Vector sums[kLanes] = {};
  int64_t i = 0;
  for (; i + M::kStep <= k; i += M::kStep) {
    typename M::Operand a[kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) a[r] = M::LoadOperand(x[r] + i);
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c) {
      const typename M::Operand b = M::LoadOperand(w[c] + i);
      if (kPrefetch) __builtin_prefetch(w[c] + i + ahead);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
        sums[r * kColumns + c] = M::Accumulate(sums[r * kColumns + c], a[r], b);
    }
  }
  if (i < k) {
    for (int r = 0; r < kRows; ++r) {
      const typename M::Operand a = M::LoadRest(x[r] + i, k - i);
      for (int c = 0; c < kColumns; ++c)
        sums[r * kColumns + c] =
            M::Accumulate(sums[r * kColumns + c], a, M::LoadRest(w[c] + i, k - i));
    }
  }
  return SumEach(sums);
}

typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));

inline void StoreAll(float* to, Vector x) { *reinterpret_cast<VectorAt*>(to) = x; }
inline void StoreAll(uint16_t* to, Vector x) {
  const Words bits = reinterpret_cast<Words>(x);
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words nan = (bits >> 16) | 0x40u;
  const Words chosen = (bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded;
  *reinterpret_cast<HalvesAt*>(to) = __builtin_convertvector(chosen, Halves);
}

// Rows i, ... of x times rows j, ... of w: a tile of the result. Rows that are not there are
// computed as copies of one that is, and not stored. kPrefetch asks for the next tile of w.
template <int kRows, bool kPrefetch, typename T, typename Out>
inline void MatMulTile(const T* x, int64_t i, int64_t rows, int64_t k, const T* w, const T* bias,
                       int64_t n, int64_t j, int64_t columns, Out* out) {
  constexpr int kColumns = kLanes / kRows;
  const T* xs[kRows];
  const T* ws[kColumns];
  for (int r = 0; r < kRows; ++r) xs[r] = x + (r < rows ? i + r : i) * k;
  for (int c = 0; c < kColumns; ++c) ws[c] = w + (c < columns ? j + c : j) * k;
  Vector sums = DotTile<T, kRows, kColumns, kPrefetch>(xs, ws, k, kColumns * k);
  if (bias != nullptr) {
    Vector added = {};
    for (int c = 0; c < kColumns && c < columns; ++c) {
      for (int r = 0; r < kRows; ++r) added[r * kColumns + c] = Widen(bias[j + c]);
    }
    sums += added;
  }
  Out stored[kLanes];
  StoreAll(stored, sums);
  const int valid = columns < kColumns ? static_cast<int>(columns) : kColumns;
  for (int r = 0; r < kRows && r < rows; ++r) {
    Out* to = out + (i + r) * n + j;
    if (valid == kColumns) {
      std::memcpy(to, stored + r * kColumns, kColumns * sizeof(Out));
    } else {
      std::memcpy(to, stored + r * kColumns, static_cast<size_t>(valid) * sizeof(Out));
    }
  }
}

// Rows i, ... of x times columns [j, j + kVectors * kLanes) of w [k, n], or those of them before
// n_end. An element's sum goes over k one by one, in every tile.
template <int kRows, int kVectors, typename T, typename Out>
inline void StraightTile(const T* x, int64_t i, int64_t rows, int64_t k, const T* w, int64_t n,
                         int64_t j, int64_t n_end, Out* out) {
  const int64_t columns = n_end - j < kVectors * kLanes ? n_end - j : kVectors * kLanes;
  const bool whole = columns == kVectors * kLanes;
  Vector sums[kRows][kVectors] = {};
  for (int64_t p = 0; p < k; ++p) {
    const T* row = w + p * n + j;
    Vector b[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const int64_t left = columns - v * kLanes;
      b[v] = whole || left >= kLanes ? Load(row + v * kLanes)
                                     : LoadPart(row + v * kLanes, left > 0 ? left : 0);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vector a = Splat(Widen(x[(r < rows ? i + r : i) * k + p]));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = a * b[v] + sums[r][v];
    }
  }
  for (int r = 0; r < kRows && r < rows; ++r) {
    Out stored[kVectors * kLanes];
    for (int v = 0; v < kVectors; ++v) StoreAll(stored + v * kLanes, sums[r][v]);
    std::memcpy(out + (i + r) * n + j, stored, static_cast<size_t>(columns) * sizeof(Out));
  }
}

constexpr int kRowTile = KEEL_KERNEL_LANES == 16 ? 4 : 2;

// Bytes of x that stay in a core's second-level cache while w streams past.
constexpr int64_t kRowBytes = 384 << 10;

template <typename T, typename Out>
inline void MatMul(const T* x, int64_t m, int64_t k, const T* w, const T* bias, int64_t n,
                   int64_t n_begin, int64_t n_end, Out* out) {
  const int64_t fit = kRowBytes / (k * static_cast<int64_t>(sizeof(T)));
  const int64_t rows = fit < kRowTile ? kRowTile : fit / kRowTile * kRowTile;
  for (int64_t first = 0; first < m; first += rows) {
    const int64_t last = first + rows < m ? first + rows : m;
    if (last - first == 1) {
      for (int64_t j = n_begin; j < n_end; j += kLanes)
        MatMulTile<1, true>(x, first, 1, k, w, bias, n, j, n_end - j, out);
      continue;
    }
    for (int64_t j = n_begin; j < n_end; j += kLanes / kRowTile) {
      MatMulTile<kRowTile, true>(x, first, last - first, k, w, bias, n, j, n_end - j, out);
      for (int64_t i = first + kRowTile; i < last; i += kRowTile)
        MatMulTile<kRowTile, false>(x, i, last - i, k, w, bias, n, j, n_end - j, out);
    }
  }
}

// Panels of columns, so that a panel's rows of w, which lie n apart, are read once for all of x.
template <typename T, typename Out>
inline void MatMulStraight(const T* x, int64_t m, int64_t k, const T* w, int64_t n, int64_t n_begin,
                           int64_t n_end, Out* out) {
  constexpr int kVectors = 4;
  for (int64_t j = n_begin; j < n_end; j += kVectors * kLanes) {
    if (m == 1) {
      StraightTile<1, kVectors>(x, 0, 1, k, w, n, j, n_end, out);
      continue;
    }
    for (int64_t i = 0; i < m; i += kRowTile)
      StraightTile<kRowTile, kVectors>(x, i, m - i, k, w, n, j, n_end, out);
  }
}

// exp in fp32, as in cpu_kernels.cc; 0 below the smallest normal number.
inline Vector Exp(Vector x) {
  typedef int32_t Integers __attribute__((vector_size(4 * kLanes)));
  const Vector low = Splat(-87.33654f);
  const Integers tiny = x < low;
  x = tiny ? low : x;
  const Vector magic = Splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vector n = (x * 1.44269504088896341f + magic) - magic;
  Vector r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  Vector p = Splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Integers e = __builtin_convertvector(n, Integers);
  const Vector scale = reinterpret_cast<Vector>((e + 127) << 23);
  const Vector result = p * scale;
  return tiny ? Splat(0.0f) : result;
}

inline float SumLanes(Vector v) {
  float sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += v[i];
  return sum;
}

// Asks for rows that will be read soon; no more than stays in the first-level cache.
template <typename T>
inline void Prefetch(const T* rows, int64_t elements) {
  constexpr int64_t kMost = 4096 / sizeof(T);
  const int64_t n = elements < kMost ? elements : kMost;
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(64 / sizeof(T)))
    __builtin_prefetch(rows + i);
}

// Scores of one query row over positions [0, positions), with kLanes keys at a time. At the start
// of a block its values and the next block's keys are asked for.
template <typename T>
inline void Scores(const PagedHead<T>& head, const T* q, int64_t positions, float scale,
                   float* scores) {
  const int64_t elements = head.block_size * head.d;
  const int64_t blocks = (positions + head.block_size - 1) / head.block_size;
  const T* keys[kLanes];
  const T* row = nullptr;
  int64_t block = 0;
  int64_t left = 0;  // positions of the block
  for (int64_t p = 0; p < positions; p += kLanes) {
    for (int64_t c = 0; c < kLanes; ++c) {
      if (left == 0 && block < blocks) {
        const int64_t begin = head.blocks[block] * head.block_stride;
        row = head.keys + begin;
        Prefetch(head.values + begin, elements);
        if (++block < blocks)
          Prefetch(head.keys + head.blocks[block] * head.block_stride, elements);
        left = head.block_size;
      }
      keys[c] = row;
      if (p + c + 1 >= positions) continue;  // the last row again
      row += head.d;
      --left;
    }
    const Vector sums = DotTile<T, 1, kLanes, false>(&q, keys, head.d, 0) * scale;
    *reinterpret_cast<VectorAt*>(scores + p) = sums;
  }
}

// Training's attention rounds its weights to bf16 where the processor has instructions for that,
// and is widened to fp32 elsewhere (parallel/tensor/matrix_product.h). Generation does as training
// does.
#if KEEL_KERNEL_LANES == 16 || !defined(__x86_64__)
constexpr bool kRoundsWeights = true;
#else
constexpr bool kRoundsWeights = false;
#endif

// A weight as training's attention has it, for values of type T.
inline Vector RoundTo(Vector x, const float*) { return x; }
inline Vector RoundTo(Vector x, const uint16_t*) {
  if (!kRoundsWeights) return x;
  const Words bits = reinterpret_cast<Words>(x);
  return reinterpret_cast<Vector>((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
}

// Scores -> weights exp(score - largest), padded with zeros to a whole vector; returns 1 / sum. The
// sum is of weights that are not rounded, as in training's attention. `sink`: of one more score;
// -INFINITY: there is none.
template <typename T>
inline float Weigh(float* scores, int64_t positions, float sink) {
  const int64_t padded = (positions + kLanes - 1) / kLanes * kLanes;
  for (int64_t p = positions; p < padded; ++p) scores[p] = scores[0];
  Vector most = Load(scores);
  for (int64_t p = kLanes; p < padded; p += kLanes) {
    const Vector v = Load(scores + p);
    most = v > most ? v : most;
  }
  float largest = most[0] > sink ? most[0] : sink;
  for (int i = 1; i < kLanes; ++i) largest = most[i] > largest ? most[i] : largest;
  for (int64_t p = positions; p < padded; ++p) scores[p] = -INFINITY;
  Vector total = {};
  for (int64_t p = 0; p < padded; p += kLanes) {
    const Vector e = Exp(Load(scores + p) - largest);
    *reinterpret_cast<VectorAt*>(scores + p) = RoundTo(e, static_cast<const T*>(nullptr));
    total += e;
  }
  return 1.0f / (SumLanes(total) + Exp(Splat(sink - largest))[0]);
}

// out[i] = sum over positions of weight * value[i], for kVectors vectors of the head from `begin`.
template <int kVectors, typename T>
inline void MixValues(const PagedHead<T>& head, const float* weights, int64_t positions,
                      float inverse, int64_t begin, T* out) {
  Vector sums[kVectors] = {};
  for (int64_t p = 0; p < positions;) {
    const T* values = head.values + head.blocks[p / head.block_size] * head.block_stride + begin;
    const int64_t end = p + head.block_size < positions ? p + head.block_size : positions;
    for (; p < end; ++p, values += head.d) {
      const Vector weight = Splat(weights[p]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[v] += weight * Load(values + v * kLanes);
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    for (int i = 0; i < kLanes; ++i) Store(&out[begin + v * kLanes + i], sums[v][i] * inverse);
  }
}

// The elements of a head that fill no whole vector.
template <typename T>
inline void MixRest(const PagedHead<T>& head, const float* weights, int64_t positions,
                    float inverse, int64_t begin, T* out) {
  for (int64_t i = begin; i < head.d; ++i) {
    float sum = 0;
    for (int64_t p = 0; p < positions; ++p) {
      sum += weights[p] * Widen(head.values[head.blocks[p / head.block_size] * head.block_stride +
                                            p % head.block_size * head.d + i]);
    }
    Store(&out[i], sum * inverse);
  }
}

// Scores -> softcap * tanh(score / softcap).
inline void Cap(float* scores, int64_t positions, float softcap) {
  for (int64_t p = 0; p < positions; p += kLanes) {
    // tanh(u) = 1 - 2 / (exp(2 u) + 1)
    const Vector e = Exp(Load(scores + p) * (2.0f / softcap));
    *reinterpret_cast<VectorAt*>(scores + p) = softcap - (2.0f * softcap) / (e + 1.0f);
  }
}

template <typename T>
inline void Attend(const PagedHead<T>& whole, const T* q, int64_t q_stride, int64_t heads,
                   int64_t tokens, int64_t past, const PagedScores& how, T* out, int64_t out_stride,
                   float* scratch) {
  for (int64_t t = 0; t < tokens; ++t) {
    // Blocks that lie wholly before the window are left out, and so are the tokens of its first
    // block that do.
    const int64_t all = past + t + 1;
    const int64_t first = how.window > 0 && how.window < all ? all - how.window : 0;
    const int64_t left_out = first / whole.block_size;
    const int64_t hidden = first % whole.block_size;
    const int64_t positions = all - left_out * whole.block_size;
    PagedHead<T> head = whole;
    head.blocks += left_out;
    for (int64_t h = 0; h < heads; ++h) {
      T* to = out + t * out_stride + h * head.d;
      Scores(head, q + t * q_stride + h * head.d, positions, how.scale, scratch);
      if (how.softcap > 0) Cap(scratch, positions, how.softcap);
      for (int64_t p = 0; p < hidden; ++p) scratch[p] = -INFINITY;
      const float sink = how.sinks != nullptr ? how.sinks[h] : -INFINITY;
      const float inverse = Weigh<T>(scratch, positions, sink);
      int64_t begin = 0;
      for (; begin + 8 * kLanes <= head.d; begin += 8 * kLanes)
        MixValues<8>(head, scratch, positions, inverse, begin, to);
      for (; begin + 4 * kLanes <= head.d; begin += 4 * kLanes)
        MixValues<4>(head, scratch, positions, inverse, begin, to);
      for (; begin + kLanes <= head.d; begin += kLanes)
        MixValues<1>(head, scratch, positions, inverse, begin, to);
      MixRest(head, scratch, positions, inverse, begin, to);
    }
  }
}

// What the dispatcher calls.
struct Entry {
  static void MatMulFF(const float* x, int64_t m, int64_t k, const float* w, const float* bias,
                       int64_t n, int64_t n_begin, int64_t n_end, float* out) {
    MatMul(x, m, k, w, bias, n, n_begin, n_end, out);
  }
  static void MatMulBB(const uint16_t* x, int64_t m, int64_t k, const uint16_t* w,
                       const uint16_t* bias, int64_t n, int64_t n_begin, int64_t n_end,
                       uint16_t* out) {
    MatMul(x, m, k, w, bias, n, n_begin, n_end, out);
  }
  static void MatMulBF(const uint16_t* x, int64_t m, int64_t k, const uint16_t* w,
                       const uint16_t* bias, int64_t n, int64_t n_begin, int64_t n_end,
                       float* out) {
    MatMul(x, m, k, w, bias, n, n_begin, n_end, out);
  }
  static void StraightF(const float* x, int64_t m, int64_t k, const float* w, int64_t n,
                        int64_t n_begin, int64_t n_end, float* out) {
    MatMulStraight(x, m, k, w, n, n_begin, n_end, out);
  }
  static void StraightB(const uint16_t* x, int64_t m, int64_t k, const uint16_t* w, int64_t n,
                        int64_t n_begin, int64_t n_end, uint16_t* out) {
    MatMulStraight(x, m, k, w, n, n_begin, n_end, out);
  }
  static void AttendF(const PagedHead<float>& head, const float* q, int64_t q_stride, int64_t heads,
                      int64_t tokens, int64_t past, const PagedScores& how, float* out,
                      int64_t out_stride, float* scratch) {
    Attend(head, q, q_stride, heads, tokens, past, how, out, out_stride, scratch);
  }
  static void AttendB(const PagedHead<uint16_t>& head, const uint16_t* q, int64_t q_stride,
                      int64_t heads, int64_t tokens, int64_t past, const PagedScores& how,
                      uint16_t* out, int64_t out_stride, float* scratch) {
    Attend(head, q, q_stride, heads, tokens, past, how, out, out_stride, scratch);
  }
};
