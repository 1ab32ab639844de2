#include "common/kernels/activation.h"

#include <cmath>

#include "common/kernels/gelu-inl.h"

namespace keel::kernels {

namespace {

using elements::GeluTanh;
using elements::Load;
using elements::Store;

// The error function within some units of the last place of 1: a rational function of x, odd, whose
// numerator and denominator are those of Eigen's and XLA's fast erf.
KEEL_INLINE float Erf(float x) {
  x = x < -4.0f ? -4.0f : x;
  x = x > 4.0f ? 4.0f : x;
  const float s = x * x;
  float p = -2.72614225801306e-10f;
  p = p * s + 2.77068142495902e-08f;
  p = p * s - 2.10102402082508e-06f;
  p = p * s - 5.69250639462346e-05f;
  p = p * s - 7.34990630326855e-04f;
  p = p * s - 2.95459980854025e-03f;
  p = p * s - 1.60960333262415e-02f;
  float q = -1.45660718464996e-05f;
  q = q * s - 2.13374055278905e-04f;
  q = q * s - 1.68282697438203e-03f;
  q = q * s - 7.37332916720468e-03f;
  q = q * s - 1.42647390514189e-02f;
  const float y = x * p / q;
  return y < -1.0f ? -1.0f : (y > 1.0f ? 1.0f : y);  // NaN stays one
}

struct Relu {
  KEEL_INLINE static float Value(float x) { return x > 0.0f ? x : 0.0f * x; }  // NaN stays one
  KEEL_INLINE static float Slope(float x) { return x > 0.0f ? 1.0f : 0.0f * x; }
};

struct Relu2 {
  KEEL_INLINE static float Value(float x) {
    const float r = x > 0.0f ? x : 0.0f * x;  // NaN stays one
    return r * r;
  }
  KEEL_INLINE static float Slope(float x) { return 2.0f * (x > 0.0f ? x : 0.0f * x); }
};

struct Gelu {
  static constexpr float kRootHalf = 0.70710678118654752f;
  static constexpr float kDensity = 0.39894228040143268f;  // 1 / sqrt(2 pi)
  KEEL_INLINE static float Distribution(float x) { return 0.5f + 0.5f * Erf(x * kRootHalf); }
  KEEL_INLINE static float Value(float x) { return x * Distribution(x); }
  KEEL_INLINE static float Slope(float x) {
    return Distribution(x) + x * kDensity * Exp(-0.5f * x * x);
  }
};

struct GeluByTanh {
  KEEL_INLINE static float Value(float x) { return x * GeluTanh::Weight(x); }
  KEEL_INLINE static float Slope(float x) {
    const float s = GeluTanh::Weight(x);
    return s * (1.0f + x * (1.0f - s) * GeluTanh::Slope(x));
  }
};

template <typename C, typename T>
KEEL_INLINE void ActivateBody(const T* x, int64_t n, T* out) {
  for (int64_t i = 0; i < n; ++i) Store(&out[i], C::Value(Load(x[i])));
}

template <typename C, typename T>
KEEL_INLINE void ActivateBackwardBody(const T* dout, const T* x, int64_t n, T* dx) {
  for (int64_t i = 0; i < n; ++i) Store(&dx[i], Load(dout[i]) * C::Slope(Load(x[i])));
}

}  // namespace

#define KEEL_DEFINE(T)                                                                             \
  template <>                                                                                      \
  KEEL_CLONES void Activate<T>(Curve curve, const T* x, int64_t n, T* out) {                       \
    if (curve == Curve::kRelu) {                                                                   \
      ActivateBody<Relu>(x, n, out);                                                               \
    } else if (curve == Curve::kRelu2) {                                                           \
      ActivateBody<Relu2>(x, n, out);                                                              \
    } else if (curve == Curve::kGelu) {                                                            \
      ActivateBody<Gelu>(x, n, out);                                                               \
    } else {                                                                                       \
      ActivateBody<GeluByTanh>(x, n, out);                                                         \
    }                                                                                              \
  }                                                                                                \
  template <>                                                                                      \
  KEEL_CLONES void ActivateBackward<T>(Curve curve, const T* dout, const T* x, int64_t n, T* dx) { \
    if (curve == Curve::kRelu) {                                                                   \
      ActivateBackwardBody<Relu>(dout, x, n, dx);                                                  \
    } else if (curve == Curve::kRelu2) {                                                           \
      ActivateBackwardBody<Relu2>(dout, x, n, dx);                                                 \
    } else if (curve == Curve::kGelu) {                                                            \
      ActivateBackwardBody<Gelu>(dout, x, n, dx);                                                  \
    } else {                                                                                       \
      ActivateBackwardBody<GeluByTanh>(dout, x, n, dx);                                            \
    }                                                                                              \
  }
KEEL_FOR_BOTH(KEEL_DEFINE)

}  // namespace keel::kernels
