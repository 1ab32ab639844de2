// The sigmoid, and GELU by a tanh, of gates and of feed-forwards without one.
#pragma once

#include "common/kernels/elements-inl.h"
#include "common/kernels/exp-inl.h"

namespace keel::kernels::elements {

KEEL_INLINE float Sigmoid(float x) { return 1.0f / (1.0f + Exp(-x)); }

// (1 + tanh(u)) / 2 is the sigmoid of 2 u.
struct GeluTanh {
  static constexpr float kRoot = 1.5957691216057308f;  // 2 sqrt(2 / pi)
  static constexpr float kCube = 0.044715f;
  KEEL_INLINE static float Weight(float x) { return Sigmoid(kRoot * (x + kCube * x * x * x)); }
  KEEL_INLINE static float Slope(float x) { return kRoot * (1.0f + 3.0f * kCube * x * x); }
};

}  // namespace keel::kernels::elements
