// The vectorised kernels against plain loops in double.

#include "common/kernels/cpu_kernels.h"

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
  RmsNorm<float>(x.data(), n, w.data(), {1e-5f, 0}, rows, n, out.data(), n, rstd.data());
  RmsNormBackward<float>(dy.data(), n, x.data(), n, w.data(), 0, rstd.data(), rows, n, dx.data(), n,
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

TEST(CpuKernelsTest, GeluUnitAndItsGradient) {
  const int64_t n = 41;
  const auto x = Random(2 * n, 3, 4), dout = Random(n, 1, 5);
  std::vector<float> out(n), dx(2 * n);
  GatedUnit<float>(Gate::kGeluTanh, x.data(), 1, n, out.data());
  GatedUnitBackward<float>(Gate::kGeluTanh, dout.data(), x.data(), 1, n, dx.data());
  const auto f = [](double g, double u) {
    return 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * u;
  };
  for (int64_t i = 0; i < n; ++i) {
    const double g = x[i], u = x[n + i], h = 1e-5;
    EXPECT_NEAR(out[i], f(g, u), 1e-5 * (1 + std::fabs(out[i])));
    const double slope = (f(g + h, u) - f(g - h, u)) / (2 * h);
    EXPECT_NEAR(dx[i], dout[i] * slope, 1e-4 * (1 + std::fabs(slope)));
    EXPECT_NEAR(dx[n + i], dout[i] * f(g, 1), 1e-4 * (1 + std::fabs(dx[n + i])));
  }
}

TEST(CpuKernelsTest, SwiGluAndItsGradient) {
  const int64_t n = 41;
  const auto x = Random(2 * n, 3, 4), dout = Random(n, 1, 5);
  std::vector<float> out(n), dx(2 * n);
  GatedUnit<float>(Gate::kSilu, x.data(), 1, n, out.data());
  GatedUnitBackward<float>(Gate::kSilu, dout.data(), x.data(), 1, n, dx.data());
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
  const float log_sum = std::log(statistics[1]), weight = 0.5f;
  SoftmaxGradient<float>(logits.data(), stride, 1, columns, &target, {&statistics[0], &log_sum},
                         &weight);
  for (int64_t i = 0; i < columns; ++i) {
    EXPECT_NEAR(logits[i], 0.5 * (std::exp(before[i] - largest) / sum - (i == target)), 1e-5);
  }
  for (int64_t i = columns; i < stride; ++i)
    EXPECT_EQ(logits[i], 0) << "padding must carry no gradient";
}

// Over a vocabulary what a sum loses would add up over a response's tokens.
TEST(CpuKernelsTest, TheSumOverAVocabularyErrsToNoSide) {
  const int64_t columns = 49'152, rows = 24, target = 7;
  double softmax = 0, token = 0, weighted = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const auto logits = Random(columns, 1.5f, 100 + static_cast<uint32_t>(row));
    float plain[3], all[4];
    SoftmaxStatistics<float>(logits.data(), columns, 1, columns, &target, plain);
    TokenStatistics<float>(logits.data(), columns, 1, columns, &target, 1.0f, true, all);
    double sum = 0, product = 0;
    for (const float logit : logits) {
      const double below = static_cast<double>(logit) - static_cast<double>(all[0]);
      sum += std::exp(below);
      product += std::exp(below) * below;
    }
    softmax += (plain[1] / sum - 1) / rows;
    token += (all[1] / sum - 1) / rows;
    weighted += (all[3] / product - 1) / rows;
  }
  EXPECT_LT(std::fabs(softmax), 1e-7);
  EXPECT_LT(std::fabs(token), 1e-7);
  EXPECT_LT(std::fabs(weighted), 1e-7);
}

// Against the definitions in fp64, and by differences.
TEST(CpuKernelsTest, TokenStatisticsAndTheirGradient) {
  const int64_t columns = 37, stride = 40, target = 5;
  const float temperature = 0.7f;
  const auto logits = Random(stride, 4, 9);
  // log p(target) and entropy with one logit moved.
  const auto define = [&](int64_t moved, double by) {
    double sum = 0, log_p = 0, entropy = 0;
    const auto x = [&](int64_t i) { return (logits[i] + (i == moved ? by : 0)) / temperature; };
    for (int64_t i = 0; i < columns; ++i) sum += std::exp(x(i));
    for (int64_t i = 0; i < columns; ++i) {
      const double l = x(i) - std::log(sum);
      entropy -= std::exp(l) * l;
      if (i == target) log_p = l;
    }
    return std::pair(log_p, entropy);
  };
  float statistics[4];
  TokenStatistics<float>(logits.data(), stride, 1, columns, &target, temperature, true, statistics);
  const float log_sum = std::log(statistics[1]);
  const float entropy = log_sum - statistics[3] / statistics[1];
  EXPECT_NEAR((statistics[2] - statistics[0]) / temperature - log_sum, define(-1, 0).first, 1e-5);
  EXPECT_NEAR(entropy, define(-1, 0).second, 1e-5);
  float again[4];
  TokenStatistics<float>(logits.data(), stride, 1, columns, &target, temperature, false, again);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(again[i], statistics[i]);

  auto gradient = logits;
  const float a = 0.6f, b = -0.9f;
  TokenStatisticsGradient<float>(gradient.data(), stride, 1, columns, &target, temperature,
                                 {&statistics[0], &log_sum}, &entropy, &a, &b);
  for (int64_t i = 0; i < columns; ++i) {
    const auto up = define(i, 1e-5), down = define(i, -1e-5);
    EXPECT_NEAR(gradient[i], (a * (up.first - down.first) + b * (up.second - down.second)) / 2e-5,
                1e-5);
  }
  for (int64_t i = columns; i < stride; ++i) EXPECT_EQ(gradient[i], 0);
}

// A model that is all but certain, with logits as large as late in training: log p of the likely
// token is 1e-5 or so, as small as the rounding of a logit of 128.
TEST(CpuKernelsTest, LargeLogitsLoseNoDigitsOfSmallGradients) {
  const int64_t columns = 64;
  for (const float temperature : {1.0f, 0.7f}) {
    for (const float second : {117.0f, 127.9921875f}) {
      auto logits = Random(columns, 3, 17);
      for (float& x : logits) x += 100.0f;
      const int64_t target = 9;
      logits[target] = 128.0f;
      logits[20] = second;
      std::vector<double> log_p(columns);
      double sum = 0, h = 0;
      for (const float x : logits) sum += std::exp((double{x} - 128.0) / double{temperature});
      for (int64_t i = 0; i < columns; ++i) {
        log_p[i] = (double{logits[i]} - 128.0) / double{temperature} - std::log(sum);
        h -= std::exp(log_p[i]) * log_p[i];
      }
      float statistics[4];
      TokenStatistics<float>(logits.data(), columns, 1, columns, &target, temperature, true,
                             statistics);
      const float log_sum = std::log(statistics[1]);
      const float entropy = log_sum - statistics[3] / statistics[1];
      EXPECT_NEAR((statistics[2] - statistics[0]) / temperature - log_sum, log_p[target], 2e-7);
      EXPECT_NEAR(entropy, h, 2e-7);

      auto gradient = logits;
      const float a = 0, b = 1;
      TokenStatisticsGradient<float>(gradient.data(), columns, 1, columns, &target, temperature,
                                     {&statistics[0], &log_sum}, &entropy, &a, &b);
      auto of_loss = logits;
      SoftmaxGradient<float>(of_loss.data(), columns, 1, columns, &target,
                             {&statistics[0], &log_sum}, &b);
      for (int64_t i = 0; i < columns; ++i) {
        const double p = std::exp(log_p[i]);
        EXPECT_NEAR(gradient[i], -p * (log_p[i] + h) / double{temperature}, 4e-7)
            << "entropy's gradient of " << i << " at temperature " << temperature;
        if (temperature == 1) {
          EXPECT_NEAR(of_loss[i], p - (i == target), 3e-7 * p + 1e-7) << i;
        }
      }
    }
  }
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
  const AdamWScalars s({1e-2, 0.9, 0.95, 1e-8, 0.1, 1, 0.5});
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

TEST(CpuKernelsTest, AdamWHasTheMomentsOfItsRatesInFp64) {
  const double beta1 = 0.9, beta2 = 0.999;
  float m = 0, v = 0, master = 1;
  double exact_m = 0, exact_v = 0, exact = 1;
  const float gradient = 0.75f;
  for (int t = 1; t <= 20; ++t) {
    AdamW(AdamWScalars({1e-2, beta1, beta2, 1e-8, 0.1, t, 1.0}), 1, &gradient, &master, &m, &v,
          nullptr);
    exact_m += (gradient - exact_m) * (1 - beta1);
    exact_v = beta2 * exact_v + (1 - beta2) * gradient * gradient;
    exact = exact * (1 - 1e-3) - 1e-2 / (1 - std::pow(beta1, t)) * exact_m /
                                     (std::sqrt(exact_v / (1 - std::pow(beta2, t))) + 1e-8);
    EXPECT_NEAR(v / exact_v, 1, 1e-6) << t;
    EXPECT_NEAR(m / exact_m, 1, 1e-6) << t;
    EXPECT_NEAR(master, exact, 1e-6) << t;
  }
}

// bfloat16 by the definition: the nearest value with 16 bits, ties to the even one.
uint16_t ToBf16(float value) {
  const double below = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xffff0000u);
  const uint32_t low = std::bit_cast<uint32_t>(value) >> 16;
  const double above = std::bit_cast<float>((low + 1) << 16);
  const double to_below = std::fabs(value - below), to_above = std::fabs(above - value);
  const bool up = to_above < to_below || (to_above == to_below && low % 2 == 1);
  return static_cast<uint16_t>(low + (up ? 1 : 0));
}
float FromBf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

std::vector<uint16_t> ToBf16(const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (const float value : values) bits.push_back(ToBf16(value));
  return bits;
}
std::vector<float> FromBf16(const std::vector<uint16_t>& bits) {
  std::vector<float> values;
  for (const uint16_t b : bits) values.push_back(FromBf16(b));
  return values;
}

// All of a kernel's rows in one call, in a call per row, and in place: the same bits.
TEST(CpuKernelsTest, RowsMayBeSplitAndRewritten) {
  const int64_t rows = 7, n = 45, stride = 51;
  const auto x = Random(rows * stride, 2, 11), dy = Random(rows * stride, 1, 12);
  const auto w = Random(n, 1, 13);
  std::vector<float> out(x.size()), rstd(rows), dx(x.size()), dw(n);
  RmsNorm<float>(x.data(), stride, w.data(), {1e-5f, 0}, rows, n, out.data(), stride, rstd.data());
  RmsNormBackward<float>(dy.data(), stride, x.data(), stride, w.data(), 0, rstd.data(), rows, n,
                         dx.data(), stride, dw.data());
  std::vector<float> out_in_x = x, dx_in_dy = dy, rstd2(rows), dw2(n);
  for (int64_t row = 0; row < rows; ++row) {
    float* const r = out_in_x.data() + row * stride;
    RmsNorm<float>(r, stride, w.data(), {1e-5f, 0}, 1, n, r, stride, rstd2.data() + row);
    float* const d = dx_in_dy.data() + row * stride;
    RmsNormBackward<float>(d, stride, x.data() + row * stride, stride, w.data(), 0,
                           rstd2.data() + row, 1, n, d, stride, dw2.data());
  }
  EXPECT_EQ(rstd, rstd2);
  EXPECT_EQ(dw, dw2);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < stride; ++i) {
      const auto at = static_cast<size_t>(row * stride + i);
      // What lies between the rows is nobody's.
      EXPECT_EQ(out_in_x[at], i < n ? out[at] : x[at]);
      EXPECT_EQ(dx_in_dy[at], i < n ? dx[at] : dy[at]);
    }
  }

  const auto gate_up = Random(rows * 2 * n, 3, 14), logits = Random(rows * stride, 5, 15);
  const std::vector<int64_t> targets = {0, 44, 45, -1, 7, 50, 3};
  std::vector<float> act(rows * n), act2(rows * n), statistics(rows * 3), statistics2(rows * 3);
  GatedUnit<float>(Gate::kSilu, gate_up.data(), rows, n, act.data());
  SoftmaxStatistics<float>(logits.data(), stride, rows, n, targets.data(), statistics.data());
  for (int64_t row = 0; row < rows; ++row) {
    GatedUnit<float>(Gate::kSilu, gate_up.data() + row * 2 * n, 1, n, act2.data() + row * n);
    SoftmaxStatistics<float>(logits.data() + row * stride, stride, 1, n, &targets[row],
                             statistics2.data() + row * 3);
    const bool inside = targets[row] >= 0 && targets[row] < n;
    EXPECT_EQ(statistics[row * 3 + 2], inside ? logits[row * stride + targets[row]] : 0);
  }
  EXPECT_EQ(act, act2);
  EXPECT_EQ(statistics, statistics2);
}

// On bfloat16 a kernel is the fp32 one on the same values, rounded once at the end.
TEST(CpuKernelsTest, Bfloat16IsRoundedOnce) {
  const int64_t rows = 3, n = 67;
  const auto x = ToBf16(Random(rows * n, 2, 21)), dy = ToBf16(Random(rows * n, 1, 22));
  const auto w = ToBf16(Random(n, 1, 23)), gate_up = ToBf16(Random(rows * 2 * n, 2, 24));
  const auto xf = FromBf16(x), dyf = FromBf16(dy), wf = FromBf16(w), gate_up_f = FromBf16(gate_up);
  std::vector<uint16_t> out(x.size()), dx(x.size()), act(rows * n), dgate_up(gate_up.size());
  std::vector<float> outf(x.size()), dxf(x.size()), actf(rows * n), dgate_up_f(gate_up.size());
  std::vector<float> rstd(rows), rstdf(rows), dw(n), dwf(n);
  RmsNorm<uint16_t>(x.data(), n, w.data(), {1e-6f, 0}, rows, n, out.data(), n, rstd.data());
  RmsNorm<float>(xf.data(), n, wf.data(), {1e-6f, 0}, rows, n, outf.data(), n, rstdf.data());
  RmsNormBackward<uint16_t>(dy.data(), n, x.data(), n, w.data(), 0, rstd.data(), rows, n, dx.data(),
                            n, dw.data());
  RmsNormBackward<float>(dyf.data(), n, xf.data(), n, wf.data(), 0, rstdf.data(), rows, n,
                         dxf.data(), n, dwf.data());
  GatedUnit<uint16_t>(Gate::kSilu, gate_up.data(), rows, n, act.data());
  GatedUnit<float>(Gate::kSilu, gate_up_f.data(), rows, n, actf.data());
  GatedUnitBackward<uint16_t>(Gate::kSilu, dy.data(), gate_up.data(), rows, n, dgate_up.data());
  GatedUnitBackward<float>(Gate::kSilu, dyf.data(), gate_up_f.data(), rows, n, dgate_up_f.data());
  // The vectoriser may sum in another order for the other type: an ulp of fp32 can turn a rounding.
  const auto near = [](const std::vector<uint16_t>& bits, const std::vector<float>& values) {
    for (size_t i = 0; i < bits.size(); ++i) {
      ASSERT_LE(std::fabs(FromBf16(bits[i]) - values[i]),
                std::ldexp(std::fabs(values[i]), -8) + 1e-30);
    }
  };
  near(out, outf);
  near(dx, dxf);
  near(act, actf);
  near(dgate_up, dgate_up_f);
  for (int64_t i = 0; i < n; ++i) EXPECT_NEAR(dw[i], dwf[i], 1e-5);
}

TEST(CpuKernelsTest, RopeTurnsPairsAndBack) {
  const int64_t rows = 4, heads = 3, d = 10, half = d / 2, stride = 40, positions_known = 9;
  const std::vector<int32_t> positions = {0, 8, 3, 3};
  std::vector<float> cosine(positions_known * half), sine(positions_known * half);
  const auto angle = [&](int64_t position, int64_t i) {
    return static_cast<double>(position) * std::pow(100.0, -static_cast<double>(i) / half);
  };
  for (int64_t p = 0; p < positions_known; ++p) {
    for (int64_t i = 0; i < half; ++i) {
      cosine[p * half + i] = static_cast<float>(std::cos(angle(p, i)));
      sine[p * half + i] = static_cast<float>(std::sin(angle(p, i)));
    }
  }
  const auto before = Random(rows * stride, 1, 31);
  for (const bool interleaved : {false, true}) {
    const RopeHeads shape = {heads, d, d, interleaved};
    auto x = before;
    Rope<float>(x.data(), stride, rows, shape, positions.data(), cosine.data(), sine.data(), 1);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t head = 0; head < heads; ++head) {
        for (int64_t i = 0; i < half; ++i) {
          const auto first = static_cast<size_t>(row * stride + head * d);
          const size_t a = first + static_cast<size_t>(interleaved ? 2 * i : i);
          const size_t b = interleaved ? a + 1 : a + half;
          const double turn = angle(positions[row], i);
          EXPECT_NEAR(x[a], before[a] * std::cos(turn) - before[b] * std::sin(turn), 1e-5);
          EXPECT_NEAR(x[b], before[b] * std::cos(turn) + before[a] * std::sin(turn), 1e-5);
        }
      }
      for (int64_t i = heads * d; i < stride; ++i)
        EXPECT_EQ(x[row * stride + i], before[row * stride + i]);
    }
    Rope<float>(x.data(), stride, rows, shape, positions.data(), cosine.data(), sine.data(), -1);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], before[i], 1e-5);
  }
}

TEST(CpuKernelsTest, SumsOfSquaresAreInDoublePrecision) {
  const int64_t n = 10'001;
  const auto x = Random(n, 1e15f, 41);  // squares beyond fp32's sums
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * v;
  EXPECT_NEAR(SumOfSquares(x.data(), n), sum, 1e-10 * sum);
  EXPECT_EQ(SumOfSquares(x.data(), 0), 0);
}

}  // namespace
}  // namespace keel::kernels
