// Activations and their slopes against their definitions in double.

#include "common/kernels/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "tests/common/kernels/numbers.h"

namespace keel::kernels {
namespace {

double Normal(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double Of(Curve curve, double x) {
  if (curve == Curve::kRelu) return x > 0 ? x : 0;
  if (curve == Curve::kRelu2) return x > 0 ? x * x : 0;
  if (curve == Curve::kGelu) return x * Normal(x);
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double SlopeOf(Curve curve, double x) {
  constexpr double kStep = 1e-5;
  return (Of(curve, x + kStep) - Of(curve, x - kStep)) / (2 * kStep);
}

// From far on one side to far on the other, in steps that are no multiples of anything.
std::vector<float> Points() {
  std::vector<float> points;
  for (double x = -12; x < 12; x += 0.00371) points.push_back(static_cast<float>(x));
  return points;
}

class ActivationTest : public ::testing::TestWithParam<Curve> {};

TEST_P(ActivationTest, IsItsDefinition) {
  const auto x = Points();
  std::vector<float> out(x.size()), dx(x.size()), dout(x.size(), 1.5f);
  Activate<float>(GetParam(), x.data(), static_cast<int64_t>(x.size()), out.data());
  ActivateBackward<float>(GetParam(), dout.data(), x.data(), static_cast<int64_t>(x.size()),
                          dx.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = Of(GetParam(), x[i]);
    // Some units of the last place of 1, where the distribution function is all but 0 or 1.
    EXPECT_NEAR(out[i], expected, 2.5e-7 * (2 + std::fabs(x[i]) + std::fabs(expected))) << x[i];
    EXPECT_NEAR(dx[i], 1.5 * SlopeOf(GetParam(), x[i]), 3e-6 * (1 + std::fabs(x[i]))) << x[i];
  }
}

TEST_P(ActivationTest, OfBfloat16AndInPlace) {
  std::vector<uint16_t> x;
  for (const float v : Points()) x.push_back(Narrow<uint16_t>(v));
  std::vector<uint16_t> out = x;
  Activate<uint16_t>(GetParam(), out.data(), static_cast<int64_t>(out.size()), out.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = Of(GetParam(), Widen(x[i]));
    EXPECT_NEAR(Widen(out[i]), expected, 4e-3 * std::fabs(expected) + 1e-6) << Widen(x[i]);
  }
}

TEST_P(ActivationTest, WhatIsNoNumberStaysNone) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  float out = 0, dx = 0;
  const float one = 1;
  Activate<float>(GetParam(), &nan, 1, &out);
  ActivateBackward<float>(GetParam(), &one, &nan, 1, &dx);
  EXPECT_TRUE(std::isnan(out));
  EXPECT_TRUE(std::isnan(dx));
}

INSTANTIATE_TEST_SUITE_P(Curves, ActivationTest,
                         ::testing::Values(Curve::kRelu, Curve::kRelu2, Curve::kGelu,
                                           Curve::kGeluTanh));

}  // namespace
}  // namespace keel::kernels
