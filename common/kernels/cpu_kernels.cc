#include "common/kernels/cpu_kernels.h"

#include <cmath>
#include <limits>

#include "common/kernels/elements-inl.h"
#include "common/kernels/gelu-inl.h"

namespace keel::kernels {

namespace {

using elements::GeluTanh;
using elements::Load;
using elements::Sigmoid;
using elements::Store;

template <typename T>
KEEL_INLINE void RmsNormBody(const T* x, int64_t x_stride, const T* weight,
                             const NormScalars& scalars, int64_t rows, int64_t n, T* out,
                             int64_t out_stride, float* rstd) {
  for (int64_t row = 0; row < rows; ++row, x += x_stride, out += out_stride) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i) sum += Load(x[i]) * Load(x[i]);
    const float r = 1.0f / std::sqrt(sum / static_cast<float>(n) + scalars.eps);
    rstd[row] = r;
    for (int64_t i = 0; i < n; ++i)
      Store(&out[i], Load(x[i]) * r * (scalars.offset + Load(weight[i])));
  }
}

// With h = x * r: dx = r * (w * dy - h * mean(w * dy * h)); dw += dy * h.
template <typename T>
KEEL_INLINE void RmsNormBackwardBody(const T* dy, int64_t dy_stride, const T* x, int64_t x_stride,
                                     const T* weight, float offset, const float* rstd, int64_t rows,
                                     int64_t n, T* dx, int64_t dx_stride, float* weight_gradient) {
  for (int64_t row = 0; row < rows; ++row, x += x_stride, dy += dy_stride, dx += dx_stride) {
    const float r = rstd[row];
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < n; ++i) dot += Load(dy[i]) * (offset + Load(weight[i])) * Load(x[i]);
    const float mean = dot * r / static_cast<float>(n);
    for (int64_t i = 0; i < n; ++i) {
      const float h = Load(x[i]) * r;
      const float g = Load(dy[i]);
      weight_gradient[i] += g * h;
      Store(&dx[i], r * (g * (offset + Load(weight[i])) - h * mean));
    }
  }
}

// A gate is x * Weight(x), a sigmoid of something whose slope at x is Slope(x).
struct Silu {
  KEEL_INLINE static float Weight(float x) { return Sigmoid(x); }
  KEEL_INLINE static float Slope(float) { return 1.0f; }
};

template <typename G, typename T>
KEEL_INLINE void GatedBody(const T* gate_up, int64_t rows, int64_t n, T* out) {
  for (int64_t row = 0; row < rows; ++row, gate_up += 2 * n, out += n) {
    for (int64_t i = 0; i < n; ++i) {
      const float g = Load(gate_up[i]);
      Store(&out[i], g * G::Weight(g) * Load(gate_up[n + i]));
    }
  }
}

template <typename G, typename T>
KEEL_INLINE void GatedBackwardBody(const T* dout, const T* gate_up, int64_t rows, int64_t n,
                                   T* dgate_up) {
  for (int64_t row = 0; row < rows; ++row, gate_up += 2 * n, dgate_up += 2 * n, dout += n) {
    for (int64_t i = 0; i < n; ++i) {
      const float g = Load(gate_up[i]);
      const float u = Load(gate_up[n + i]);
      const float d = Load(dout[i]);
      const float s = G::Weight(g);
      Store(&dgate_up[i], d * u * s * (1.0f + g * (1.0f - s) * G::Slope(g)));
      Store(&dgate_up[n + i], d * g * s);
    }
  }
}

template <typename T>
KEEL_INLINE void SigmoidGateBody(const T* x, const T* gate, int64_t n, T* out) {
  for (int64_t i = 0; i < n; ++i) Store(&out[i], Load(x[i]) * Sigmoid(Load(gate[i])));
}

template <typename T>
KEEL_INLINE void SigmoidGateBackwardBody(const T* dout, const T* x, const T* gate, int64_t n, T* dx,
                                         T* dgate) {
  for (int64_t i = 0; i < n; ++i) {
    const float d = Load(dout[i]);
    const float s = Sigmoid(Load(gate[i]));
    Store(&dx[i], d * s);
    Store(&dgate[i], d * Load(x[i]) * s * (1.0f - s));
  }
}

template <typename T>
KEEL_INLINE void RopeBody(T* x, int64_t row_stride, int64_t rows, const RopeHeads& heads,
                          const int32_t* positions, const float* cosine, const float* sine,
                          float direction) {
  const int64_t half = heads.rotated / 2;
  for (int64_t row = 0; row < rows; ++row, x += row_stride) {
    const float* c = cosine + positions[row] * half;
    const float* s = sine + positions[row] * half;
    for (int64_t head = 0; head < heads.heads; ++head) {
      T* a = x + head * heads.d;
      T* b = a + half;
      if (heads.interleaved) {
        for (int64_t i = 0; i < half; ++i) {
          const float first = Load(a[2 * i]);
          const float second = Load(a[2 * i + 1]);
          const float turn = direction * s[i];
          Store(&a[2 * i], first * c[i] - second * turn);
          Store(&a[2 * i + 1], second * c[i] + first * turn);
        }
        continue;
      }
      for (int64_t i = 0; i < half; ++i) {
        const float low = Load(a[i]);
        const float high = Load(b[i]);
        const float turn = direction * s[i];
        Store(&a[i], low * c[i] - high * turn);
        Store(&b[i], high * c[i] + low * turn);
      }
    }
  }
}

// The sum of term(i), i < n. In one fp32 accumulator what is added to a large sum is rounded away,
// of a vocabulary always to the same side.
template <typename Term>
KEEL_INLINE float SumInBlocks(int64_t n, const Term& term) {
  constexpr int64_t kBlock = 1024;
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = begin + kBlock < n ? begin + kBlock : n;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < end; ++i) sum += term(i);
    total += static_cast<double>(sum);
  }
  return static_cast<float>(total);
}

template <typename T>
KEEL_INLINE void SoftmaxStatisticsBody(const T* logits, int64_t row_stride, int64_t rows,
                                       int64_t columns, const int64_t* targets, float* statistics) {
  for (int64_t row = 0; row < rows; ++row, logits += row_stride, statistics += 3) {
    float largest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < columns; ++i) {
      const float v = Load(logits[i]);
      largest = v > largest ? v : largest;
    }
    const float sum =
        SumInBlocks(columns, [&](int64_t i) { return Exp(Load(logits[i]) - largest); });
    const int64_t target = targets[row];
    statistics[0] = largest;
    statistics[1] = sum;
    statistics[2] = target >= 0 && target < columns ? Load(logits[target]) : 0.0f;
  }
}

template <typename T>
KEEL_INLINE void SoftmaxGradientBody(T* logits, int64_t row_stride, int64_t rows, int64_t columns,
                                     const int64_t* targets, const RowSoftmax& softmax,
                                     const float* weight) {
  for (int64_t row = 0; row < rows; ++row, logits += row_stride) {
    const float w = weight[row];
    const float largest = softmax.maximum[row];
    const float z = softmax.log_sum[row];
    const int64_t target = targets[row];
    const bool here = target >= 0 && target < columns;
    const auto p = [&](float logit) { return Exp((logit - largest) - z); };
    const float at_target = here ? w * (p(Load(logits[target])) - 1.0f) : 0.0f;
    for (int64_t i = 0; i < columns; ++i) Store(&logits[i], w * p(Load(logits[i])));
    if (here) Store(&logits[target], at_target);
    for (int64_t i = columns; i < row_stride; ++i) Store(&logits[i], 0.0f);
  }
}

template <typename T>
KEEL_INLINE void TokenStatisticsBody(const T* logits, int64_t row_stride, int64_t rows,
                                     int64_t columns, const int64_t* targets, float temperature,
                                     bool entropy, float* statistics) {
  for (int64_t row = 0; row < rows; ++row, logits += row_stride, statistics += 4) {
    float largest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < columns; ++i) {
      const float v = Load(logits[i]);
      largest = v > largest ? v : largest;
    }
    const auto below = [&](int64_t i) { return (Load(logits[i]) - largest) / temperature; };
    const float sum = SumInBlocks(columns, [&](int64_t i) { return Exp(below(i)); });
    const float weighted =
        entropy ? SumInBlocks(columns, [&](int64_t i) { return Exp(below(i)) * below(i); }) : 0.0f;
    const int64_t target = targets[row];
    statistics[0] = largest;
    statistics[1] = sum;
    statistics[2] = target >= 0 && target < columns ? Load(logits[target]) : 0.0f;
    statistics[3] = weighted;
  }
}

template <typename T>
KEEL_INLINE void TokenStatisticsGradientBody(T* logits, int64_t row_stride, int64_t rows,
                                             int64_t columns, const int64_t* targets,
                                             float temperature, const RowSoftmax& softmax,
                                             const float* entropy, const float* log_prob_gradient,
                                             const float* entropy_gradient) {
  for (int64_t row = 0; row < rows; ++row, logits += row_stride) {
    const float a = log_prob_gradient[row] / temperature;
    const float b = entropy_gradient[row] / temperature;
    const float largest = softmax.maximum[row];
    const float z = softmax.log_sum[row];
    const float h = entropy[row];
    const int64_t target = targets[row];
    const bool here = target >= 0 && target < columns;
    // d log p(t) = [i == t] - p_i; d entropy = -p_i (log p_i + entropy).
    const auto gradient = [&](float logit, float hit) {
      const float log_p = (logit - largest) / temperature - z;
      const float p = Exp(log_p);
      return a * (hit - p) - b * p * (log_p + h);
    };
    const float at_target = here ? gradient(Load(logits[target]), 1.0f) : 0.0f;
    for (int64_t i = 0; i < columns; ++i) Store(&logits[i], gradient(Load(logits[i]), 0.0f));
    if (here) Store(&logits[target], at_target);
    for (int64_t i = columns; i < row_stride; ++i) Store(&logits[i], 0.0f);
  }
}

}  // namespace

#define KEEL_DEFINE(T)                                                                            \
  template <>                                                                                     \
  KEEL_CLONES void RmsNorm<T>(const T* x, int64_t x_stride, const T* weight,                      \
                              const NormScalars& scalars, int64_t rows, int64_t n, T* out,        \
                              int64_t out_stride, float* rstd) {                                  \
    RmsNormBody(x, x_stride, weight, scalars, rows, n, out, out_stride, rstd);                    \
  }                                                                                               \
  template <>                                                                                     \
  KEEL_CLONES void RmsNormBackward<T>(const T* dy, int64_t dy_stride, const T* x,                 \
                                      int64_t x_stride, const T* weight, float offset,            \
                                      const float* rstd, int64_t rows, int64_t n, T* dx,          \
                                      int64_t dx_stride, float* weight_gradient) {                \
    RmsNormBackwardBody(dy, dy_stride, x, x_stride, weight, offset, rstd, rows, n, dx, dx_stride, \
                        weight_gradient);                                                         \
  }                                                                                               \
  template <>                                                                                     \
  KEEL_CLONES void GatedUnit<T>(Gate gate, const T* gate_up, int64_t rows, int64_t n, T* out) {   \
    if (gate == Gate::kSilu) {                                                                    \
      GatedBody<Silu>(gate_up, rows, n, out);                                                     \
    } else {                                                                                      \
      GatedBody<GeluTanh>(gate_up, rows, n, out);                                                 \
    }                                                                                             \
  }                                                                                               \
  template <>                                                                                     \
  KEEL_CLONES void GatedUnitBackward<T>(Gate gate, const T* dout, const T* gate_up, int64_t rows, \
                                        int64_t n, T* dgate_up) {                                 \
    if (gate == Gate::kSilu) {                                                                    \
      GatedBackwardBody<Silu>(dout, gate_up, rows, n, dgate_up);                                  \
    } else {                                                                                      \
      GatedBackwardBody<GeluTanh>(dout, gate_up, rows, n, dgate_up);                              \
    }                                                                                             \
  }                                                                                               \
  template <>                                                                                     \
  KEEL_CLONES void SigmoidGate<T>(const T* x, const T* gate, int64_t n, T* out) {                 \
    SigmoidGateBody(x, gate, n, out);                                                             \
  }                                                                                               \
  template <>                                                                                     \
  KEEL_CLONES void SigmoidGateBackward<T>(const T* dout, const T* x, const T* gate, int64_t n,    \
                                          T* dx, T* dgate) {                                      \
    SigmoidGateBackwardBody(dout, x, gate, n, dx, dgate);                                         \
  }                                                                                               \
  template <>                                                                                     \
  KEEL_CLONES void Rope<T>(T * x, int64_t row_stride, int64_t rows, const RopeHeads& heads,       \
                           const int32_t* positions, const float* cosine, const float* sine,      \
                           float direction) {                                                     \
    RopeBody(x, row_stride, rows, heads, positions, cosine, sine, direction);                     \
  }                                                                                               \
  template <>                                                                                     \
  KEEL_CLONES void SoftmaxStatistics<T>(const T* logits, int64_t row_stride, int64_t rows,        \
                                        int64_t columns, const int64_t* targets,                  \
                                        float* statistics) {                                      \
    SoftmaxStatisticsBody(logits, row_stride, rows, columns, targets, statistics);                \
  }                                                                                               \
  template <>                                                                                     \
  KEEL_CLONES void SoftmaxGradient<T>(T * logits, int64_t row_stride, int64_t rows,               \
                                      int64_t columns, const int64_t* targets,                    \
                                      const RowSoftmax& softmax, const float* weight) {           \
    SoftmaxGradientBody(logits, row_stride, rows, columns, targets, softmax, weight);             \
  }                                                                                               \
  template <>                                                                                     \
  KEEL_CLONES void TokenStatistics<T>(const T* logits, int64_t row_stride, int64_t rows,          \
                                      int64_t columns, const int64_t* targets, float temperature, \
                                      bool entropy, float* statistics) {                          \
    TokenStatisticsBody(logits, row_stride, rows, columns, targets, temperature, entropy,         \
                        statistics);                                                              \
  }                                                                                               \
  template <>                                                                                     \
  KEEL_CLONES void TokenStatisticsGradient<T>(                                                    \
      T * logits, int64_t row_stride, int64_t rows, int64_t columns, const int64_t* targets,      \
      float temperature, const RowSoftmax& softmax, const float* entropy,                         \
      const float* log_prob_gradient, const float* entropy_gradient) {                            \
    TokenStatisticsGradientBody(logits, row_stride, rows, columns, targets, temperature, softmax, \
                                entropy, log_prob_gradient, entropy_gradient);                    \
  }
KEEL_FOR_BOTH(KEEL_DEFINE)

KEEL_CLONES float ExpDistance(const float* x, int64_t n, float largest, float scale, float* out) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    const float v = (x[i] - largest) * scale;
    const float e = v < -87.33654f ? 0.0f : Exp(v);
    out[i] = e;
    sum += e;
  }
  return sum;
}

namespace {

KEEL_INLINE float AdamWElement(const AdamWScalars& s, float gradient, float value, float* m,
                               float* v) {
  const float g = gradient * s.gradient_scale;
  *m = *m + (g - *m) * s.beta1_rest;
  *v = s.beta2 * *v + s.beta2_rest * g * g;
  const float denominator = std::sqrt(*v) / s.bias_correction2_sqrt + s.eps;
  return value * s.kept - s.step_size * *m / denominator;
}

}  // namespace

AdamWScalars::AdamWScalars(const AdamWStep& step)
    : beta1_rest(static_cast<float>(1 - step.beta1)),
      beta2(static_cast<float>(step.beta2)),
      beta2_rest(static_cast<float>(1 - step.beta2)),
      eps(static_cast<float>(step.eps)),
      kept(static_cast<float>(1 - step.lr * step.weight_decay)),
      step_size(
          static_cast<float>(step.lr / (1 - std::pow(step.beta1, static_cast<double>(step.t))))),
      bias_correction2_sqrt(
          static_cast<float>(std::sqrt(1 - std::pow(step.beta2, static_cast<double>(step.t))))),
      gradient_scale(static_cast<float>(step.gradient_scale)) {}

KEEL_CLONES void AdamW(const AdamWScalars& scalars, int64_t n, const float* gradient, float* master,
                       float* exp_avg, float* exp_avg_sq, uint16_t* weight) {
  const AdamWScalars s = scalars;
  if (weight == nullptr) {
    for (int64_t i = 0; i < n; ++i) {
      master[i] = AdamWElement(s, gradient[i], master[i], &exp_avg[i], &exp_avg_sq[i]);
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      const float value = AdamWElement(s, gradient[i], master[i], &exp_avg[i], &exp_avg_sq[i]);
      master[i] = value;
      Store(&weight[i], value);
    }
  }
}

KEEL_CLONES double SumOfSquares(const float* x, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

}  // namespace keel::kernels
