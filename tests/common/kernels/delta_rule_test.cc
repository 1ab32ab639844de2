#include "common/kernels/delta_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/common/kernels/numbers.h"

namespace keel::kernels {
namespace {

template <typename T>
const DeltaKernelsOf<T>& Of(const DeltaKernels& kernels) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return kernels.fp32;
  } else {
    return kernels.bf16;
  }
}

struct Sizes {
  int64_t tokens, key_dim, value_heads, value_dim;
};

// The inputs of a text in double, [tokens, ..] each, as numbers that T has.
struct Text {
  Sizes n;
  std::vector<double> q, k, v, log_decay, beta;
};
template <typename T>
Text Drawn(const Sizes& n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  const auto draw = [&](int64_t count, const std::function<double(double)>& f) {
    std::vector<double> values(static_cast<size_t>(count));
    for (double& x : values) x = f(normal(random));
    return values;
  };
  const auto plain = [](double x) {
    return static_cast<double>(Widen(Narrow<T>(static_cast<float>(x))));
  };
  return {n,
          draw(n.tokens * n.key_dim, plain),
          draw(n.tokens * n.key_dim, plain),
          draw(n.tokens * n.value_heads * n.value_dim, plain),
          draw(n.tokens * n.value_heads, [](double x) { return static_cast<float>(-0.2 * x * x); }),
          draw(n.tokens * n.value_heads,
               [](double x) { return static_cast<float>(1 / (1 + std::exp(-x))); })};
}

std::vector<double> Normalized(const double* x, int64_t n, double scale) {
  const double sum = std::inner_product(x, x + n, x, 1e-6);
  std::vector<double> out(x, x + n);
  for (double& value : out) value *= scale / std::sqrt(sum);
  return out;
}

// Results [tokens, value_heads, value_dim], one token after another.
std::vector<double> Reference(const Text& text) {
  const auto [tokens, key_dim, heads, value_dim] = text.n;
  std::vector<double> out;
  std::vector<double> states(static_cast<size_t>(heads * key_dim * value_dim));
  for (int64_t t = 0; t < tokens; ++t) {
    const auto q = Normalized(&text.q[static_cast<size_t>(t * key_dim)], key_dim,
                              1 / std::sqrt(static_cast<double>(key_dim)));
    const auto k = Normalized(&text.k[static_cast<size_t>(t * key_dim)], key_dim, 1);
    for (int64_t h = 0; h < heads; ++h) {
      double* const state = &states[static_cast<size_t>(h * key_dim * value_dim)];
      const auto gate = static_cast<size_t>(t * heads + h);
      for (int64_t i = 0; i < key_dim * value_dim; ++i) state[i] *= std::exp(text.log_decay[gate]);
      for (int64_t j = 0; j < value_dim; ++j) {
        double seen = 0, result = 0;
        for (int64_t i = 0; i < key_dim; ++i)
          seen += k[static_cast<size_t>(i)] * state[i * value_dim + j];
        const double v = text.v[static_cast<size_t>((t * heads + h) * value_dim + j)];
        for (int64_t i = 0; i < key_dim; ++i) {
          double& s = state[i * value_dim + j];
          s += k[static_cast<size_t>(i)] * text.beta[gate] * (v - seen);
          result += q[static_cast<size_t>(i)] * s;
        }
        out.push_back(result);
      }
    }
  }
  return out;
}

// A text among others: rows have something in front, between and behind.
template <typename T>
struct Memory {
  std::vector<T> rows, gradients;
  std::vector<float> log_decay, beta;
  DeltaText<T> text;
  explicit Memory(const Text& from) {
    const auto [tokens, key_dim, heads, value_dim] = from.n;
    text.stride = 2 * key_dim + heads * value_dim + 7;
    text.gate_stride = heads + 2;
    rows.assign(static_cast<size_t>(tokens * text.stride), Narrow<T>(99));
    gradients = rows;
    log_decay.assign(static_cast<size_t>(tokens * text.gate_stride), 99);
    beta = log_decay;
    const auto put = [&](const std::vector<double>& values, int64_t width, int64_t at) {
      for (int64_t i = 0; i < tokens * width; ++i)
        rows[static_cast<size_t>(i / width * text.stride + at + i % width)] =
            Narrow<T>(static_cast<float>(values[static_cast<size_t>(i)]));
    };
    put(from.q, key_dim, 2);
    put(from.k, key_dim, 3 + key_dim);
    put(from.v, heads * value_dim, 4 + 2 * key_dim);
    for (int64_t i = 0; i < tokens * heads; ++i) {
      const auto at = static_cast<size_t>(i / heads * text.gate_stride + i % heads);
      log_decay[at] = static_cast<float>(from.log_decay[static_cast<size_t>(i)]);
      beta[at] = static_cast<float>(from.beta[static_cast<size_t>(i)]);
    }
    text.q = rows.data() + 2;
    text.k = rows.data() + 3 + key_dim;
    text.v = rows.data() + 4 + 2 * key_dim;
    text.log_decay = log_decay.data();
    text.beta = beta.data();
    text.tokens = tokens;
    text.key_dim = key_dim;
    text.value_heads = heads;
    text.value_dim = value_dim;
  }
  // Tokens [first, first + count).
  DeltaText<T> Part(int64_t first, int64_t count) const {
    DeltaText<T> part = text;
    part.q += first * text.stride;
    part.k += first * text.stride;
    part.v += first * text.stride;
    part.log_decay += first * text.gate_stride;
    part.beta += first * text.gate_stride;
    part.tokens = count;
    return part;
  }
};

constexpr Sizes kSizes[] = {{1, 1, 1, 1},    {5, 3, 2, 5},    {64, 16, 1, 32},
                            {65, 17, 3, 33}, {130, 8, 1, 70}, {200, 33, 2, 31}};

template <typename T>
void CheckForward(double most) {
  for (const DeltaKernels& kernels : UsableDeltaKernels()) {
    for (const Sizes& n : kSizes) {
      const Text text = Drawn<T>(n, 3);
      const std::vector<double> expected = Reference(text);
      const Memory<T> memory(text);
      const int64_t width = n.value_heads * n.value_dim, stride = width + 3;
      std::vector<float> scratch(static_cast<size_t>(DeltaScratch(n.key_dim)));
      const auto run = [&](int64_t part, std::vector<float>* states) {
        states->assign(static_cast<size_t>(width * n.key_dim), 0);
        std::vector<T> out(static_cast<size_t>(n.tokens * stride), Narrow<T>(77));
        for (int64_t first = 0; first < n.tokens; first += part) {
          Of<T>(kernels).rule(memory.Part(first, std::min(part, n.tokens - first)), states->data(),
                              out.data() + first * stride, stride, scratch.data());
        }
        return out;
      };
      std::vector<float> whole_states, states;
      const std::vector<T> whole = run(n.tokens, &whole_states);
      for (int64_t i = 0; i < n.tokens * stride; ++i) {
        const double found = Widen(whole[static_cast<size_t>(i)]);
        if (i % stride >= width) {
          EXPECT_EQ(found, 77);
        } else {
          EXPECT_NEAR(found, expected[static_cast<size_t>(i / stride * width + i % stride)], most)
              << kernels.name << ", " << n.tokens << " tokens, " << i;
        }
      }
      // However it is cut: the same bits.
      for (const int64_t part : {int64_t{1}, int64_t{7}, int64_t{64}}) {
        EXPECT_EQ(run(part, &states), whole) << kernels.name << ", parts of " << part;
        EXPECT_EQ(states, whole_states);
      }
    }
  }
}

TEST(DeltaRule, IsTheRecurrenceHoweverATextIsCut) {
  CheckForward<float>(2e-6);
  CheckForward<uint16_t>(2e-2);
}

// Along a direction of one kind of input the results change as the gradients say.
template <typename T>
void CheckGradient(double most) {
  for (const DeltaKernels& kernels : UsableDeltaKernels()) {
    for (const Sizes& n : kSizes) {
      const Text text = Drawn<T>(n, 4);
      const Memory<T> memory(text);
      const int64_t width = n.value_heads * n.value_dim;
      const Text other = Drawn<T>(n, 5);  // whose v is the results' gradient
      std::vector<T> dout(static_cast<size_t>(n.tokens * width));
      for (size_t i = 0; i < dout.size(); ++i) dout[i] = Narrow<T>(static_cast<float>(other.v[i]));
      Memory<T> out(text);
      std::vector<float> scratch(static_cast<size_t>(DeltaGradientScratch(n.tokens, n.key_dim)));
      T* const d = out.rows.data();
      Of<T>(kernels).rule_gradient(
          memory.text, dout.data(), width,
          {d + 2, d + 3 + n.key_dim, d + 4 + 2 * n.key_dim, out.log_decay.data(), out.beta.data()},
          scratch.data());
      const auto value = [&](const Text& at) {
        const std::vector<double> results = Reference(at);
        return std::inner_product(results.begin(), results.end(), other.v.begin(), 0.0);
      };
      const Text direction = Drawn<T>(n, 6);
      const auto check = [&](const char* what, std::vector<double> Text::*part,
                             const std::function<double(int64_t)>& gradient) {
        const double step = 1e-6;
        Text up = text, down = text;
        double said = 0, size = 0;
        for (size_t i = 0; i < (text.*part).size(); ++i) {
          const double along = (direction.*part)[i];
          (up.*part)[i] += step * along;
          (down.*part)[i] -= step * along;
          const double one = along * gradient(static_cast<int64_t>(i));
          said += one;
          size += std::abs(one);
        }
        EXPECT_NEAR((value(up) - value(down)) / (2 * step), said, most * (size + 1e-2))
            << kernels.name << ", " << what << ", " << n.tokens << " tokens";
      };
      const auto of_rows = [&](int64_t part, int64_t at) {
        return [&, part, at](int64_t i) -> double {
          return Widen(
              out.rows[static_cast<size_t>(i / part * memory.text.stride + at + i % part)]);
        };
      };
      check("q", &Text::q, of_rows(n.key_dim, 2));
      check("k", &Text::k, of_rows(n.key_dim, 3 + n.key_dim));
      check("v", &Text::v, of_rows(width, 4 + 2 * n.key_dim));
      const auto of_gates = [&](const std::vector<float>& gates) {
        return [&](int64_t i) -> double {
          return gates[static_cast<size_t>(i / n.value_heads * memory.text.gate_stride +
                                           i % n.value_heads)];
        };
      };
      check("log_decay", &Text::log_decay, of_gates(out.log_decay));
      check("beta", &Text::beta, of_gates(out.beta));
      EXPECT_EQ(Widen(out.rows[0]), 99);  // nothing beside it is written
      EXPECT_EQ(out.log_decay[static_cast<size_t>(n.value_heads)], 99);
    }
  }
}

TEST(DeltaRule, GradientsAreThoseOfTheRecurrence) {
  CheckGradient<float>(1e-5);
  CheckGradient<uint16_t>(1e-2);
}

struct Convolution {
  int64_t tokens, channels, taps;
};

template <typename T>
void CheckConvolution(double most) {
  std::mt19937 random(9);
  std::normal_distribution<double> normal;
  for (const DeltaKernels& kernels : UsableDeltaKernels()) {
    for (const auto& [tokens, channels, taps] :
         {Convolution{1, 1, 1}, Convolution{3, 5, 4}, Convolution{9, 256, 2},
          Convolution{20, 257, 3}, Convolution{2, 600, 4}}) {
      const auto draw = [&](int64_t count) {
        std::vector<double> values(static_cast<size_t>(count));
        for (double& x : values) x = Widen(Narrow<T>(static_cast<float>(normal(random))));
        return values;
      };
      const auto as = [](const std::vector<double>& values) {
        std::vector<T> out;
        for (const double x : values) out.push_back(Narrow<T>(static_cast<float>(x)));
        return out;
      };
      const std::vector<double> x = draw((tokens + taps - 1) * channels);
      const std::vector<double> dout = draw(tokens * channels);
      std::vector<float> weight;
      for (const double w : draw(taps * channels)) weight.push_back(static_cast<float>(w));
      std::vector<T> out(static_cast<size_t>(tokens * channels)), dx = out;
      std::vector<float> dweight(weight.size(), 1);
      std::vector<float> scratch(static_cast<size_t>((tokens + taps - 1) * channels));
      Of<T>(kernels).convolve(as(x).data(), channels, tokens, channels, weight.data(), taps,
                              out.data(), channels);
      Of<T>(kernels).convolve_gradient(as(x).data(), channels, as(dout).data(), channels, tokens,
                                       channels, weight.data(), taps, dx.data(), channels,
                                       dweight.data(), scratch.data());
      std::vector<double> expected_dx(x.size()), expected_dweight(weight.size(), 1);
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t c = 0; c < channels; ++c) {
          double sum = 0;
          for (int64_t i = 0; i < taps; ++i)
            sum += static_cast<double>(weight[static_cast<size_t>(i * channels + c)]) *
                   x[static_cast<size_t>((t + i) * channels + c)];
          const double s = 1 / (1 + std::exp(-sum));
          const auto place = static_cast<size_t>(t * channels + c);
          EXPECT_NEAR(Widen(out[place]), sum * s, most * (1 + std::abs(sum * s))) << kernels.name;
          const double slope = dout[place] * s * (1 + sum * (1 - s));
          for (int64_t i = 0; i < taps; ++i) {
            const auto tap = static_cast<size_t>(i * channels + c);
            const auto input = static_cast<size_t>((t + i) * channels + c);
            expected_dx[input] += slope * static_cast<double>(weight[tap]);
            expected_dweight[tap] += slope * x[input];
          }
        }
      }
      for (size_t i = 0; i < dx.size(); ++i) {
        const double of_token = expected_dx[i + static_cast<size_t>((taps - 1) * channels)];
        EXPECT_NEAR(Widen(dx[i]), of_token, most * (1 + std::abs(of_token))) << kernels.name;
      }
      for (size_t i = 0; i < dweight.size(); ++i)
        EXPECT_NEAR(dweight[i], expected_dweight[i], 1e-5 * (1 + std::abs(expected_dweight[i])));
    }
  }
}

TEST(ConvolveSilu, IsTheSumOverItsTapsAndItsGradient) {
  CheckConvolution<float>(2e-6);
  CheckConvolution<uint16_t>(1e-2);
}

}  // namespace
}  // namespace keel::kernels
