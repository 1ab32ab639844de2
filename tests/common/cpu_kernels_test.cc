// The vectorised kernels against plain loops in double.

#include "common/cpu_kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

namespace keel::kernels {
namespace {

std::vector<float> Random(size_t n, float scale, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(n);
  for (float& v : values) v = normal(generator);
  return values;
}

TEST(CpuKernelsTest, RmsNormAndItsGradient) {
  const int64_t rows = 5, n = 37;
  const auto x = Random(rows * n, 2, 1), dy = Random(rows * n, 1, 2), w = Random(n, 1, 3);
  std::vector<float> out(x.size()), rstd(rows), dx(x.size()), dw(n);
  RmsNorm<float>(x.data(), n, w.data(), rows, n, 1e-5f, out.data(), n, rstd.data());
  RmsNormBackward<float>(dy.data(), n, x.data(), n, w.data(), rstd.data(), rows, n, dx.data(), n,
                         dw.data());
  const auto loss = [&](const std::vector<double>& input, int64_t row) {
    double mean = 0, sum = 0;
    for (int64_t i = 0; i < n; ++i) mean += input[i] * input[i] / n;
    for (int64_t i = 0; i < n; ++i)
      sum += input[i] / std::sqrt(mean + 1e-5) * w[i] * dy[row * n + i];
    return sum;
  };
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<double> input(x.begin() + row * n, x.begin() + (row + 1) * n);
    for (int64_t i = 0; i < n; ++i) {
      const double step = 1e-5;
      auto up = input, down = input;
      up[i] += step;
      down[i] -= step;
      EXPECT_NEAR(dx[row * n + i], (loss(up, row) - loss(down, row)) / (2 * step), 1e-4);
    }
  }
}

TEST(CpuKernelsTest, SwiGluAndItsGradient) {
  const int64_t n = 41;
  const auto x = Random(2 * n, 3, 4), dout = Random(n, 1, 5);
  std::vector<float> out(n), dx(2 * n);
  SwiGlu<float>(x.data(), 1, n, out.data());
  SwiGluBackward<float>(dout.data(), x.data(), 1, n, dx.data());
  const auto f = [](double g, double u) { return g / (1 + std::exp(-g)) * u; };
  for (int64_t i = 0; i < n; ++i) {
    EXPECT_NEAR(out[i], f(x[i], x[n + i]), 1e-5 * (1 + std::fabs(out[i])));
    const double step = 1e-6;
    EXPECT_NEAR(dx[i], dout[i] * (f(x[i] + step, x[n + i]) - f(x[i] - step, x[n + i])) / (2 * step),
                1e-4);
    EXPECT_NEAR(dx[n + i], dout[i] * f(x[i], 1), 1e-5);
  }
}

TEST(CpuKernelsTest, SoftmaxOverAWideRange) {
  const int64_t columns = 100, stride = 104;
  auto logits = Random(stride, 30, 6);
  const int64_t target = 7;
  float statistics[3];
  SoftmaxStatistics<float>(logits.data(), stride, 1, columns, &target, statistics);
  double largest = -1e30, sum = 0;
  for (int64_t i = 0; i < columns; ++i) largest = std::max<double>(largest, logits[i]);
  for (int64_t i = 0; i < columns; ++i) sum += std::exp(logits[i] - largest);
  EXPECT_EQ(statistics[0], static_cast<float>(largest));
  EXPECT_NEAR(statistics[1], sum, 1e-5 * sum);
  EXPECT_EQ(statistics[2], logits[target]);
  const auto before = logits;
  const float log_sum = static_cast<float>(largest + std::log(sum)), weight = 0.5f;
  SoftmaxGradient<float>(logits.data(), stride, 1, columns, &target, &log_sum, &weight);
  for (int64_t i = 0; i < columns; ++i) {
    EXPECT_NEAR(logits[i], 0.5 * (std::exp(before[i] - largest) / sum - (i == target)), 1e-5);
  }
  for (int64_t i = columns; i < stride; ++i)
    EXPECT_EQ(logits[i], 0) << "padding must carry no gradient";
}

// A NaN must reach the loss, so that the step is skipped and not averaged away.
TEST(CpuKernelsTest, NanIsNotHidden) {
  std::vector<float> logits(64, 1.0f);
  logits[20] = NAN;
  const int64_t target = 3;
  float statistics[3];
  SoftmaxStatistics<float>(logits.data(), 64, 1, 64, &target, statistics);
  EXPECT_TRUE(std::isnan(statistics[1]));
  EXPECT_TRUE(std::isnan(SumOfSquares(logits.data(), 64)));
}

TEST(CpuKernelsTest, AdamWRoundsWeightsToNearestEven) {
  const AdamWScalars s{1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.1f, std::sqrt(0.05f), 0.5f};
  const int64_t n = 33;
  const auto gradient = Random(n, 1, 7), initial = Random(n, 1, 8);
  auto master = initial;
  std::vector<float> m(n), v(n);
  std::vector<uint16_t> weight(n);
  AdamW(s, n, gradient.data(), master.data(), m.data(), v.data(), weight.data());
  for (int64_t i = 0; i < n; ++i) {
    const double g = 0.5 * gradient[i];
    const double expected =
        initial[i] * (1 - 1e-3) - 1e-2 * (0.1 * g / 0.1) / (std::sqrt(0.05 * g * g / 0.05) + 1e-8);
    EXPECT_NEAR(master[i], expected, 1e-6);
    const float stored = std::bit_cast<float>(static_cast<uint32_t>(weight[i]) << 16);
    EXPECT_LE(std::fabs(stored - master[i]), std::ldexp(std::fabs(master[i]), -8));
  }
}

}  // namespace
}  // namespace keel::kernels
