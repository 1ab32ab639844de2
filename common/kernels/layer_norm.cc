#include "common/kernels/layer_norm.h"

#include <cmath>

#include "common/kernels/elements-inl.h"

namespace keel::kernels {

namespace {

using elements::Load;
using elements::Store;

template <typename T>
KEEL_INLINE void LayerNormBody(const T* x, const T* weight, const T* bias,
                               const NormScalars& scalars, int64_t rows, int64_t n, T* out,
                               float* statistics) {
  const auto count = static_cast<float>(n);
  for (int64_t row = 0; row < rows; ++row, x += n, out += n, statistics += 2) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i) sum += Load(x[i]);
    const float mean = sum / count;
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < n; ++i) squares += (Load(x[i]) - mean) * (Load(x[i]) - mean);
    const float r = 1.0f / std::sqrt(squares / count + scalars.eps);
    statistics[0] = mean;
    statistics[1] = r;
    if (bias != nullptr) {
      for (int64_t i = 0; i < n; ++i) {
        Store(&out[i],
              (Load(x[i]) - mean) * r * (scalars.offset + Load(weight[i])) + Load(bias[i]));
      }
    } else {
      for (int64_t i = 0; i < n; ++i)
        Store(&out[i], (Load(x[i]) - mean) * r * (scalars.offset + Load(weight[i])));
    }
  }
}

// With h = (x - mean) * r and g = w * dy: dx = r * (g - mean(g) - h * mean(g * h)); dw += dy * h;
// db += dy.
template <typename T>
KEEL_INLINE void LayerNormBackwardBody(const T* dy, const T* x, const T* weight, float offset,
                                       const float* statistics, int64_t rows, int64_t n, T* dx,
                                       float* weight_gradient, float* bias_gradient) {
  const auto count = static_cast<float>(n);
  for (int64_t row = 0; row < rows; ++row, x += n, dy += n, dx += n, statistics += 2) {
    const float mean = statistics[0];
    const float r = statistics[1];
    float sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
    for (int64_t i = 0; i < n; ++i) {
      const float g = Load(dy[i]) * (offset + Load(weight[i]));
      sum += g;
      dot += g * ((Load(x[i]) - mean) * r);
    }
    const float mean_g = sum / count;
    const float mean_gh = dot / count;
    if (bias_gradient != nullptr)
      for (int64_t i = 0; i < n; ++i) bias_gradient[i] += Load(dy[i]);
    for (int64_t i = 0; i < n; ++i) {
      const float h = (Load(x[i]) - mean) * r;
      const float d = Load(dy[i]);
      weight_gradient[i] += d * h;
      Store(&dx[i], r * (d * (offset + Load(weight[i])) - mean_g - h * mean_gh));
    }
  }
}

}  // namespace

#define KEEL_DEFINE(T)                                                                           \
  template <>                                                                                    \
  KEEL_CLONES void LayerNorm<T>(const T* x, const T* weight, const T* bias,                      \
                                const NormScalars& scalars, int64_t rows, int64_t n, T* out,     \
                                float* statistics) {                                             \
    LayerNormBody(x, weight, bias, scalars, rows, n, out, statistics);                           \
  }                                                                                              \
  template <>                                                                                    \
  KEEL_CLONES void LayerNormBackward<T>(const T* dy, const T* x, const T* weight, float offset,  \
                                        const float* statistics, int64_t rows, int64_t n, T* dx, \
                                        float* weight_gradient, float* bias_gradient) {          \
    LayerNormBackwardBody(dy, x, weight, offset, statistics, rows, n, dx, weight_gradient,       \
                          bias_gradient);                                                        \
  }
KEEL_FOR_BOTH(KEEL_DEFINE)

}  // namespace keel::kernels
