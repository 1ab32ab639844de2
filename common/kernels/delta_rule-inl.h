// The kernels of delta_rule.h in terms of vectors of kLanes floats. Included by delta_rule.cc once
// per instruction set, inside a namespace and between target pragmas; so no include guard, no
// lambdas (they would not inherit the target), and everything is inline in the same namespace.

#include "common/kernels/vectors-inl.h"

// Columns of a state do not depend on each other. So many are computed at a time, of all tokens of
// a segment, while their part of the state stays in the first cache.
constexpr int64_t kColumns = 32;
constexpr int kVectors = static_cast<int>(kColumns) / kLanes;
static_assert(kColumns == kScratchColumns);  // what callers make room for

typedef Vector Columns[kVectors];

inline void StoreVector(float* p, Vector x) { *reinterpret_cast<VectorAt*>(p) = x; }

inline float SumOfLanes(Vector x) {
  float sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += x[i];
  return sum;
}

// out = x times the factor, which is returned: what makes its length one.
template <typename T>
inline float Normalize(const T* x, int64_t n, float* out) {
  Vector squares = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vector v = Load(x + i);
    squares = v * v + squares;
  }
  if (i < n) {
    const Vector v = LoadPart(x + i, n - i);
    squares = v * v + squares;
  }
  const float factor = 1.0f / __builtin_sqrtf(SumOfLanes(squares) + kLengthEps);
  for (i = 0; i < n; ++i) out[i] = Widen(x[i]) * factor;
  return factor;
}

// The first `width` <= kColumns elements, then zeros.
template <typename T>
inline void LoadColumns(const T* p, int64_t width, Columns& out) {
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) {
    const int64_t left = width - j * kLanes;
    out[j] = left >= kLanes ? Load(p + j * kLanes)
                            : LoadPart(p + j * kLanes, left > 0 ? left : int64_t{0});
  }
}

template <typename T>
inline void StoreColumns(const Columns& x, int64_t width, T* p) {
  for (int64_t i = 0; i < width; ++i) Store(p + i, x[i / kLanes][i % kLanes]);
}

// One token of one head's columns: the state [key_dim, kColumns] after it, and what it adds to it
// but for k, `update`; `error` is that without beta. With q, its result.
struct Token {
  const float* q;
  const float* k;
  float decay;
  float beta;
};
inline void Advance(float* state, int64_t key_dim, const Token& token, const Columns& v,
                    Columns& error, Columns& update) {
  Columns seen = {};
  for (int64_t i = 0; i < key_dim; ++i) {
    float* const row = state + i * kColumns;
    const Vector k = Splat(token.k[i]);
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      const Vector s = Load(row + j * kLanes) * token.decay;
      StoreVector(row + j * kLanes, s);
      seen[j] = k * s + seen[j];
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) {
    error[j] = v[j] - seen[j];
    update[j] = error[j] * token.beta;
  }
}
inline void Write(float* state, int64_t key_dim, const Token& token, const Columns& update) {
  for (int64_t i = 0; i < key_dim; ++i) {
    float* const row = state + i * kColumns;
    const Vector k = Splat(token.k[i]);
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j)
      StoreVector(row + j * kLanes, k * update[j] + Load(row + j * kLanes));
  }
}
inline void WriteAndRead(float* state, int64_t key_dim, const Token& token, const Columns& update,
                         Columns& result) {
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) result[j] = Vector{};
  for (int64_t i = 0; i < key_dim; ++i) {
    float* const row = state + i * kColumns;
    const Vector k = Splat(token.k[i]);
    const Vector q = Splat(token.q[i]);
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      const Vector s = k * update[j] + Load(row + j * kLanes);
      StoreVector(row + j * kLanes, s);
      result[j] = q * s + result[j];
    }
  }
}

template <typename T>
inline void Recur(const DeltaText<T>& text, float* states, T* out, int64_t out_stride,
                  float* scratch) {
  const int64_t n = text.key_dim;
  float* const q = scratch;
  float* const k = q + kSegment * n;
  float* const state = k + kSegment * n;
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(n));
  for (int64_t first = 0; first < text.tokens; first += kSegment) {
    const int64_t count = text.tokens - first < kSegment ? text.tokens - first : kSegment;
    for (int64_t t = 0; t < count; ++t) {
      Normalize(text.q + (first + t) * text.stride, n, q + t * n);
      for (int64_t i = 0; i < n; ++i) q[t * n + i] *= scale;
      Normalize(text.k + (first + t) * text.stride, n, k + t * n);
    }
    for (int64_t head = 0; head < text.value_heads; ++head) {
      float* const whole = states + head * n * text.value_dim;
      for (int64_t column = 0; column < text.value_dim; column += kColumns) {
        const int64_t left = text.value_dim - column;
        const int64_t width = left < kColumns ? left : kColumns;
        Columns part, error, update, result;
        for (int64_t i = 0; i < n; ++i) {
          LoadColumns(whole + i * text.value_dim + column, width, part);
#pragma GCC unroll 4
          for (int j = 0; j < kVectors; ++j) StoreVector(state + i * kColumns + j * kLanes, part[j]);
        }
        for (int64_t t = 0; t < count; ++t) {
          const int64_t gate = (first + t) * text.gate_stride + head;
          const Token token = {q + t * n, k + t * n, __builtin_expf(text.log_decay[gate]),
                               text.beta[gate]};
          const int64_t place = head * text.value_dim + column;
          LoadColumns(text.v + (first + t) * text.stride + place, width, part);
          Advance(state, n, token, part, error, update);
          WriteAndRead(state, n, token, update, result);
          StoreColumns(result, width, out + (first + t) * out_stride + place);
        }
        for (int64_t i = 0; i < n; ++i) {
          LoadColumns(state + i * kColumns, kColumns, part);
          StoreColumns(part, width, whole + i * text.value_dim + column);
        }
      }
    }
  }
}

// The backward of one head's columns over a text. The states of a segment are computed again from
// the one that it began with, and kept until the gradients have come through it:
//
//   S' = a S_before,  e = v - k S',  u = beta e,  S = S' + k u,  result = q S
//
// so with G, the gradient by S: G += q dresult; dq = S dresult; du = k G; dbeta = du e;
// dv = beta du; G' = G - k dv, the gradient by S'; dk = u G - dv S'; da a = sum(S' G');
// and a G' is the gradient by S_before.
struct Backward {
  float* q;       // [tokens, key_dim], normalised and scaled
  float* k;       // and normalised
  float* dq;      // by these
  float* dk;
  float* begins;  // [segments, key_dim, kColumns]
  float* states;  // [kSegment, key_dim, kColumns], behind each token
  float* errors;  // [kSegment, kColumns]
  float* updates;
  float* state;     // [key_dim, kColumns]
  float* gradient;  // the same
};

template <typename T>
inline Token TokenOf(const DeltaText<T>& text, const Backward& memory, int64_t t, int64_t head) {
  const int64_t gate = t * text.gate_stride + head;
  return {memory.q + t * text.key_dim, memory.k + t * text.key_dim,
          __builtin_expf(text.log_decay[gate]), text.beta[gate]};
}

// The states behind tokens [first, first + count), from that in memory.state. With `keep` each of
// them, with errors and updates.
template <typename T>
inline void Replay(const DeltaText<T>& text, const Backward& memory, int64_t first, int64_t count,
                   int64_t head, int64_t column, int64_t width, bool keep) {
  const int64_t size = text.key_dim * kColumns;
  for (int64_t t = 0; t < count; ++t) {
    Columns v, error, update;
    LoadColumns(text.v + (first + t) * text.stride + head * text.value_dim + column, width, v);
    const Token token = TokenOf(text, memory, first + t, head);
    Advance(memory.state, text.key_dim, token, v, error, update);
    Write(memory.state, text.key_dim, token, update);
    if (!keep) continue;
    __builtin_memcpy(memory.states + t * size, memory.state, static_cast<size_t>(size) * 4);
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      StoreVector(memory.errors + t * kColumns + j * kLanes, error[j]);
      StoreVector(memory.updates + t * kColumns + j * kLanes, update[j]);
    }
  }
}

template <typename T>
inline void TokenGradient(const DeltaText<T>& text, const T* dout, int64_t dout_stride,
                          const DeltaGradients<T>& out, const Backward& memory, int64_t t,
                          int64_t kept, int64_t head, int64_t column, int64_t width) {
  const int64_t n = text.key_dim;
  const Token token = TokenOf(text, memory, t, head);
  const float* const state = memory.states + kept * n * kColumns;
  Columns dresult, error, update, dupdate = {}, dv;
  LoadColumns(dout + t * dout_stride + head * text.value_dim + column, width, dresult);
  LoadColumns(memory.errors + kept * kColumns, kColumns, error);
  LoadColumns(memory.updates + kept * kColumns, kColumns, update);
  for (int64_t i = 0; i < n; ++i) {
    float* const row = memory.gradient + i * kColumns;
    const Vector k = Splat(token.k[i]);
    const Vector q = Splat(token.q[i]);
    Vector dq = {};
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      const Vector g = q * dresult[j] + Load(row + j * kLanes);
      StoreVector(row + j * kLanes, g);
      dupdate[j] = k * g + dupdate[j];
      dq = Load(state + i * kColumns + j * kLanes) * dresult[j] + dq;
    }
    memory.dq[t * n + i] += SumOfLanes(dq);
  }
  Vector dbeta = {};
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) {
    dv[j] = dupdate[j] * token.beta;
    dbeta = dupdate[j] * error[j] + dbeta;
  }
  Vector ddecay = {};
  for (int64_t i = 0; i < n; ++i) {
    float* const row = memory.gradient + i * kColumns;
    const Vector k = Splat(token.k[i]);
    Vector dk = {};
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      const Vector g = Load(row + j * kLanes);
      const Vector before = Load(state + i * kColumns + j * kLanes) - k * update[j];
      const Vector dbefore = g - k * dv[j];
      dk = g * update[j] - dv[j] * before + dk;
      ddecay = before * dbefore + ddecay;
      StoreVector(row + j * kLanes, dbefore * token.decay);
    }
    memory.dk[t * n + i] += SumOfLanes(dk);
  }
  StoreColumns(dv, width, out.dv + t * text.stride + head * text.value_dim + column);
  const int64_t gate = t * text.gate_stride + head;
  out.dlog_decay[gate] += SumOfLanes(ddecay);
  out.dbeta[gate] += SumOfLanes(dbeta);
}

// The gradient by x of what has the gradient dy, where y = x factor, of length one.
template <typename T>
inline void NormalizeGradient(const float* y, const float* dy, float factor, int64_t n, T* dx) {
  Vector dots = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) dots = Load(y + i) * Load(dy + i) + dots;
  if (i < n) dots = LoadPart(y + i, n - i) * LoadPart(dy + i, n - i) + dots;
  const float dot = SumOfLanes(dots);
  for (i = 0; i < n; ++i) Store(dx + i, factor * (dy[i] - y[i] * dot));
}

template <typename T>
inline void RecurGradient(const DeltaText<T>& text, const T* dout, int64_t dout_stride,
                          const DeltaGradients<T>& out, float* scratch) {
  const int64_t n = text.key_dim;
  const int64_t size = n * kColumns;
  const int64_t segments = (text.tokens + kSegment - 1) / kSegment;
  Backward memory;
  memory.q = scratch;
  memory.k = memory.q + text.tokens * n;
  memory.dq = memory.k + text.tokens * n;
  memory.dk = memory.dq + text.tokens * n;
  memory.begins = memory.dk + text.tokens * n;
  memory.states = memory.begins + segments * size;
  memory.errors = memory.states + kSegment * size;
  memory.updates = memory.errors + kSegment * kColumns;
  memory.state = memory.updates + kSegment * kColumns;
  memory.gradient = memory.state + size;
  float* const factors = memory.gradient + size;  // of q and k of each token
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(n));
  for (int64_t t = 0; t < text.tokens; ++t) {
    factors[2 * t] = Normalize(text.q + t * text.stride, n, memory.q + t * n);
    for (int64_t i = 0; i < n; ++i) memory.q[t * n + i] *= scale;
    factors[2 * t + 1] = Normalize(text.k + t * text.stride, n, memory.k + t * n);
    for (int64_t head = 0; head < text.value_heads; ++head)
      out.dlog_decay[t * text.gate_stride + head] = out.dbeta[t * text.gate_stride + head] = 0;
  }
  __builtin_memset(memory.dq, 0, static_cast<size_t>(2 * text.tokens * n) * 4);

  for (int64_t head = 0; head < text.value_heads; ++head) {
    for (int64_t column = 0; column < text.value_dim; column += kColumns) {
      const int64_t left = text.value_dim - column;
      const int64_t width = left < kColumns ? left : kColumns;
      __builtin_memset(memory.state, 0, static_cast<size_t>(size) * 4);
      __builtin_memset(memory.gradient, 0, static_cast<size_t>(size) * 4);
      for (int64_t segment = 0; segment < segments; ++segment) {
        __builtin_memcpy(memory.begins + segment * size, memory.state,
                         static_cast<size_t>(size) * 4);
        if (segment + 1 < segments)
          Replay(text, memory, segment * kSegment, kSegment, head, column, width, false);
      }
      for (int64_t segment = segments; segment-- > 0;) {
        const int64_t first = segment * kSegment;
        const int64_t count = text.tokens - first < kSegment ? text.tokens - first : kSegment;
        __builtin_memcpy(memory.state, memory.begins + segment * size,
                         static_cast<size_t>(size) * 4);
        Replay(text, memory, first, count, head, column, width, true);
        for (int64_t t = count; t-- > 0;) {
          TokenGradient(text, dout, dout_stride, out, memory, first + t, t, head, column, width);
        }
      }
    }
  }
  for (int64_t t = 0; t < text.tokens; ++t) {
    // q has been scaled behind its normalisation, and so has its gradient to be before it.
    for (int64_t i = 0; i < n; ++i) {
      memory.dq[t * n + i] *= scale;
      memory.q[t * n + i] /= scale;
    }
    NormalizeGradient(memory.q + t * n, memory.dq + t * n, factors[2 * t], n,
                      out.dq + t * text.stride);
    NormalizeGradient(memory.k + t * n, memory.dk + t * n, factors[2 * t + 1], n,
                      out.dk + t * text.stride);
  }
}

// Channels whose sums are made at a time.
constexpr int64_t kChannels = 256;

// sums[c] = sum over i < taps of weight[i, c] x[i, c], of `width` channels.
template <typename T>
inline void Convolved(const T* x, int64_t x_stride, int64_t width, const float* weight,
                      int64_t weight_stride, int64_t taps, float* sums) {
  for (int64_t c = 0; c < width; ++c) sums[c] = 0;
  for (int64_t i = 0; i < taps; ++i) {
    const float* const w = weight + i * weight_stride;
    const T* const row = x + i * x_stride;
    for (int64_t c = 0; c < width; ++c) sums[c] = w[c] * Widen(row[c]) + sums[c];
  }
}

template <typename T>
inline void Convolve(const T* x, int64_t x_stride, int64_t tokens, int64_t channels,
                     const float* weight, int64_t taps, T* out, int64_t out_stride) {
  float sums[kChannels];
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t first = 0; first < channels; first += kChannels) {
      const int64_t width = channels - first < kChannels ? channels - first : kChannels;
      Convolved(x + t * x_stride + first, x_stride, width, weight + first, channels, taps, sums);
      T* const row = out + t * out_stride + first;
      for (int64_t c = 0; c < width; ++c) Store(row + c, sums[c] / (1.0f + Exp(-sums[c])));
    }
  }
}

template <typename T>
inline void ConvolveGradient(const T* x, int64_t x_stride, const T* dout, int64_t dout_stride,
                             int64_t tokens, int64_t channels, const float* weight, int64_t taps,
                             T* dx, int64_t dx_stride, float* dweight, float* scratch) {
  // By the sums before silu; behind the last token there are none.
  __builtin_memset(scratch + tokens * channels, 0, static_cast<size_t>((taps - 1) * channels) * 4);
  for (int64_t t = 0; t < tokens; ++t) {
    float* const dsums = scratch + t * channels;
    const T* const gradient = dout + t * dout_stride;
    Convolved(x + t * x_stride, x_stride, channels, weight, channels, taps, dsums);
    for (int64_t c = 0; c < channels; ++c) {
      const float s = 1.0f / (1.0f + Exp(-dsums[c]));
      dsums[c] = Widen(gradient[c]) * s * (1.0f + dsums[c] * (1.0f - s));
    }
    for (int64_t i = 0; i < taps; ++i) {
      const T* const row = x + (t + i) * x_stride;
      float* const dw = dweight + i * channels;
      for (int64_t c = 0; c < channels; ++c) dw[c] += dsums[c] * Widen(row[c]);
    }
  }
  float sums[kChannels];
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t first = 0; first < channels; first += kChannels) {
      const int64_t width = channels - first < kChannels ? channels - first : kChannels;
      // Tap i of a later token sees this one.
      for (int64_t c = 0; c < width; ++c) sums[c] = 0;
      for (int64_t i = 0; i < taps; ++i) {
        const float* const w = weight + i * channels + first;
        const float* const dsums = scratch + (t + taps - 1 - i) * channels + first;
        for (int64_t c = 0; c < width; ++c) sums[c] = w[c] * dsums[c] + sums[c];
      }
      T* const row = dx + t * dx_stride + first;
      for (int64_t c = 0; c < width; ++c) Store(row + c, sums[c]);
    }
  }
}

template <typename T>
struct Entry {
  static void Rule(const DeltaText<T>& text, float* states, T* out, int64_t out_stride,
                   float* scratch) {
    Recur(text, states, out, out_stride, scratch);
  }
  static void RuleGradient(const DeltaText<T>& text, const T* dout, int64_t dout_stride,
                           const DeltaGradients<T>& out, float* scratch) {
    RecurGradient(text, dout, dout_stride, out, scratch);
  }
  static void Convolution(const T* x, int64_t x_stride, int64_t tokens, int64_t channels,
                          const float* weight, int64_t taps, T* out, int64_t out_stride) {
    Convolve(x, x_stride, tokens, channels, weight, taps, out, out_stride);
  }
  static void ConvolutionGradient(const T* x, int64_t x_stride, const T* dout, int64_t dout_stride,
                                  int64_t tokens, int64_t channels, const float* weight,
                                  int64_t taps, T* dx, int64_t dx_stride, float* dweight,
                                  float* scratch) {
    ConvolveGradient(x, x_stride, dout, dout_stride, tokens, channels, weight, taps, dx, dx_stride,
                     dweight, scratch);
  }
};
