// Layer normalisation and its gradient against their definitions in double.

#include "common/kernels/layer_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tests/common/kernels/numbers.h"

namespace keel::kernels {
namespace {

constexpr int64_t kRows = 6, kWidth = 37;
constexpr double kEps = 1e-3;

std::vector<float> DrawNumbers(size_t n, float mean, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(mean, 2);
  std::vector<float> values(n);
  for (float& v : values) v = Widen(Narrow<uint16_t>(normal(generator)));  // the same in both types
  return values;
}

template <typename T>
std::vector<T> As(const std::vector<float>& values) {
  std::vector<T> narrow;
  for (const float v : values) narrow.push_back(Narrow<T>(v));
  return narrow;
}

struct Moments {
  double mean = 0, r = 0;
};
Moments MomentsOf(const float* x) {
  Moments m;
  for (int64_t i = 0; i < kWidth; ++i) m.mean += x[i] / double{kWidth};
  double variance = 0;
  for (int64_t i = 0; i < kWidth; ++i)
    variance += (x[i] - m.mean) * (x[i] - m.mean) / double{kWidth};
  m.r = 1 / std::sqrt(variance + kEps);
  return m;
}

template <typename T>
class LayerNormTest : public ::testing::Test {
 protected:
  static constexpr double kTolerance = sizeof(T) == 4 ? 1e-5 : 2e-2;

  void Check(float offset, bool with_bias) {
    // Far from zero, where a variance by the mean of squares loses its digits.
    const auto x = DrawNumbers(kRows * kWidth, 40, 1), dy = DrawNumbers(kRows * kWidth, 0, 2);
    const auto w = DrawNumbers(kWidth, 1, 3), b = DrawNumbers(kWidth, 0, 4);
    const auto tx = As<T>(x), tdy = As<T>(dy), tw = As<T>(w), tb = As<T>(b);
    std::vector<T> out(tx.size()), dx(tx.size());
    std::vector<float> statistics(2 * kRows), dw(kWidth, 1), db(kWidth, 1);
    LayerNorm<T>(tx.data(), tw.data(), with_bias ? tb.data() : nullptr,
                 {static_cast<float>(kEps), offset}, kRows, kWidth, out.data(), statistics.data());
    LayerNormBackward<T>(tdy.data(), tx.data(), tw.data(), offset, statistics.data(), kRows, kWidth,
                         dx.data(), dw.data(), with_bias ? db.data() : nullptr);
    std::vector<double> of_weight(kWidth, 1), of_bias(kWidth, 1);
    for (int64_t row = 0; row < kRows; ++row) {
      const float* const at = x.data() + row * kWidth;
      const Moments m = MomentsOf(at);
      EXPECT_NEAR(statistics[2 * row], m.mean, 1e-4);
      double g_mean = 0, gh_mean = 0;
      for (int64_t i = 0; i < kWidth; ++i) {
        const double h = (at[i] - m.mean) * m.r, d = dy[row * kWidth + i];
        EXPECT_NEAR(Widen(out[row * kWidth + i]), h * (offset + w[i]) + (with_bias ? b[i] : 0),
                    kTolerance * (1 + std::fabs(h * (offset + w[i]))));
        g_mean += d * (offset + w[i]) / kWidth;
        gh_mean += d * (offset + w[i]) * h / kWidth;
        of_weight[i] += d * h;
        of_bias[i] += d;
      }
      for (int64_t i = 0; i < kWidth; ++i) {
        const double h = (at[i] - m.mean) * m.r;
        const double expected =
            m.r * (dy[row * kWidth + i] * (offset + w[i]) - g_mean - h * gh_mean);
        EXPECT_NEAR(Widen(dx[row * kWidth + i]), expected, kTolerance * (1 + std::fabs(expected)));
      }
    }
    for (int64_t i = 0; i < kWidth; ++i) {
      EXPECT_NEAR(dw[i], of_weight[i], 1e-3);
      EXPECT_NEAR(db[i], with_bias ? of_bias[i] : 1, 1e-4);
    }
  }
};
using Types = ::testing::Types<float, uint16_t>;
TYPED_TEST_SUITE(LayerNormTest, Types);

TYPED_TEST(LayerNormTest, IsItsDefinition) {
  this->Check(0, true);
  this->Check(0, false);
}
TYPED_TEST(LayerNormTest, ByOneMoreThanTheWeight) { this->Check(1, true); }

TEST(LayerNormRows, ARowDoesNotDependOnHowManyThereAre) {
  const auto x = DrawNumbers(kRows * kWidth, 3, 5), w = DrawNumbers(kWidth, 1, 6);
  std::vector<float> all(x.size()), one(kWidth), statistics(2 * kRows);
  LayerNorm<float>(x.data(), w.data(), w.data(), {1e-5f, 0}, kRows, kWidth, all.data(),
                   statistics.data());
  for (int64_t row = 0; row < kRows; ++row) {
    LayerNorm<float>(x.data() + row * kWidth, w.data(), w.data(), {1e-5f, 0}, 1, kWidth, one.data(),
                     statistics.data());
    for (int64_t i = 0; i < kWidth; ++i) EXPECT_EQ(one[i], all[row * kWidth + i]);
  }
}

}  // namespace
}  // namespace keel::kernels
