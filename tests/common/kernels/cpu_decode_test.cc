#include "common/kernels/cpu_decode.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "tests/common/kernels/numbers.h"

namespace keel::kernels {
namespace {

template <typename T>
std::vector<T> Numbers(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<T> numbers(n);
  for (T& x : numbers) x = Narrow<T>(normal(random));
  return numbers;
}

void MatMul(const DecodeKernels& k, const std::vector<float>& x, int64_t m, int64_t width,
            const std::vector<float>& w, const float* bias, int64_t n, int64_t begin, int64_t end,
            float* out) {
  k.mat_mul_f32(x.data(), m, width, w.data(), bias, n, begin, end, out);
}
void MatMul(const DecodeKernels& k, const std::vector<uint16_t>& x, int64_t m, int64_t width,
            const std::vector<uint16_t>& w, const uint16_t* bias, int64_t n, int64_t begin,
            int64_t end, float* out) {
  k.mat_mul_bf16_f32(x.data(), m, width, w.data(), bias, n, begin, end, out);
}

// Against sums in double, for shapes with every kind of remainder; and each element has the same
// bits whatever is computed beside it.
template <typename T>
void CheckMatMul(const DecodeKernels& kernels) {
  for (const int64_t k : {8, 24, 32, 33, 96, 200}) {
    for (const int64_t n : {1, 15, 16, 37}) {
      const int64_t most = 21;
      const auto x = Numbers<T>(static_cast<size_t>(most * k), 1);
      const auto w = Numbers<T>(static_cast<size_t>(n * k), 2);
      const auto bias = Numbers<T>(static_cast<size_t>(n), 3);
      std::vector<float> whole(static_cast<size_t>(most * n), NAN);
      MatMul(kernels, x, most, k, w, bias.data(), n, 0, n, whole.data());
      for (int64_t i = 0; i < most; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          double sum = Widen(bias[static_cast<size_t>(j)]);
          double size = std::abs(sum);
          for (int64_t l = 0; l < k; ++l) {
            const double term = static_cast<double>(Widen(x[static_cast<size_t>(i * k + l)])) *
                                static_cast<double>(Widen(w[static_cast<size_t>(j * k + l)]));
            sum += term;
            size += std::abs(term);
          }
          ASSERT_NEAR(whole[static_cast<size_t>(i * n + j)], sum, 1e-6 * size)
              << kernels.name << ", k " << k << ", n " << n << " at " << i << ", " << j;
        }
      }
      for (const int64_t m : {1, 2, 3, 4, 5, 7, 16}) {
        std::vector<float> part(static_cast<size_t>(m * n), NAN);
        const int64_t cut = n / 3;
        MatMul(kernels, x, m, k, w, bias.data(), n, cut, n, part.data());
        MatMul(kernels, x, m, k, w, bias.data(), n, 0, cut, part.data());
        for (size_t i = 0; i < part.size(); ++i)
          ASSERT_EQ(part[i], whole[i]) << kernels.name << ", " << m << " rows of " << most;
      }
    }
  }
}

TEST(CpuDecodeTest, ProductsDoNotSeeTheirNeighbours) {
  for (const DecodeKernels& kernels : UsableDecodeKernels()) {
    CheckMatMul<float>(kernels);
    CheckMatMul<uint16_t>(kernels);
  }
}

void Straight(const DecodeKernels& k, const std::vector<float>& x, int64_t m, int64_t width,
              const std::vector<float>& w, int64_t n, int64_t begin, int64_t end, float* out) {
  k.straight_f32(x.data(), m, width, w.data(), n, begin, end, out);
}
void Straight(const DecodeKernels& k, const std::vector<uint16_t>& x, int64_t m, int64_t width,
              const std::vector<uint16_t>& w, int64_t n, int64_t begin, int64_t end,
              uint16_t* out) {
  k.straight_bf16(x.data(), m, width, w.data(), n, begin, end, out);
}

// The same of a matrix that is stored the other way.
template <typename T>
void CheckStraight(const DecodeKernels& kernels, double rounding) {
  for (const int64_t k : {8, 33, 200}) {
    for (const int64_t n : {1, 15, 16, 37, 64, 131}) {
      const int64_t most = 21;
      const auto x = Numbers<T>(static_cast<size_t>(most * k), 1);
      const auto w = Numbers<T>(static_cast<size_t>(n * k), 2);
      std::vector<T> whole(static_cast<size_t>(most * n), Narrow<T>(7));
      Straight(kernels, x, most, k, w, n, 0, n, whole.data());
      for (int64_t i = 0; i < most; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          double sum = 0;
          double size = 0;
          for (int64_t l = 0; l < k; ++l) {
            const double term = static_cast<double>(Widen(x[static_cast<size_t>(i * k + l)])) *
                                static_cast<double>(Widen(w[static_cast<size_t>(l * n + j)]));
            sum += term;
            size += std::abs(term);
          }
          ASSERT_NEAR(Widen(whole[static_cast<size_t>(i * n + j)]), sum,
                      1e-6 * size + rounding * std::abs(sum))
              << kernels.name << ", k " << k << ", n " << n << " at " << i << ", " << j;
        }
      }
      for (const int64_t m : {1, 2, 3, 4, 5, 7, 16}) {
        std::vector<T> part(static_cast<size_t>(m * n), Narrow<T>(7));
        const int64_t cut = n / 3;
        Straight(kernels, x, m, k, w, n, cut, n, part.data());
        Straight(kernels, x, m, k, w, n, 0, cut, part.data());
        for (size_t i = 0; i < part.size(); ++i)
          ASSERT_EQ(part[i], whole[i]) << kernels.name << ", " << m << " rows of " << most;
      }
    }
  }
}

TEST(CpuDecodeTest, ProductsOfAMatrixThatIsStoredTheOtherWay) {
  for (const DecodeKernels& kernels : UsableDecodeKernels()) {
    CheckStraight<float>(kernels, 0);
    CheckStraight<uint16_t>(kernels, 1.0 / 256);
  }
}

TEST(CpuDecodeTest, ManyRowsAreCutIntoPiecesThatFitTheCache) {
  const int64_t k = 3072, m = 150, n = 18;
  const auto x = Numbers<float>(static_cast<size_t>(m * k), 1);
  const auto w = Numbers<float>(static_cast<size_t>(n * k), 2);
  for (const DecodeKernels& kernels : UsableDecodeKernels()) {
    std::vector<float> whole(static_cast<size_t>(m * n)), row(static_cast<size_t>(n));
    MatMul(kernels, x, m, k, w, nullptr, n, 0, n, whole.data());
    for (const int64_t i : {int64_t{0}, int64_t{31}, int64_t{32}, int64_t{33}, m - 1}) {
      const std::vector<float> one(x.begin() + i * k, x.begin() + (i + 1) * k);
      MatMul(kernels, one, 1, k, w, nullptr, n, 0, n, row.data());
      for (int64_t j = 0; j < n; ++j)
        EXPECT_EQ(row[static_cast<size_t>(j)], whole[static_cast<size_t>(i * n + j)]);
    }
  }
}

void Attend(const DecodeKernels& k, const PagedHead<float>& head, const float* q, int64_t stride,
            int64_t heads, int64_t tokens, int64_t past, const PagedScores& scores, float* out,
            float* scratch) {
  k.attend_f32(head, q, stride, heads, tokens, past, scores, out, stride, scratch);
}
void Attend(const DecodeKernels& k, const PagedHead<uint16_t>& head, const uint16_t* q,
            int64_t stride, int64_t heads, int64_t tokens, int64_t past, const PagedScores& scores,
            uint16_t* out, float* scratch) {
  k.attend_bf16(head, q, stride, heads, tokens, past, scores, out, stride, scratch);
}

template <typename T>
void CheckAttention(const DecodeKernels& kernels, double tolerance, float softcap = 0,
                    int64_t window = 0, const std::vector<float>& sinks = {}) {
  for (const int64_t d : {6, 8, 16, 24, 64, 80, 128}) {
    for (const int64_t size : {1, 5, 16}) {
      const int64_t total = 37, heads = 3, kv_heads = 2, blocks = 50;
      const auto keys = Numbers<T>(static_cast<size_t>(blocks * kv_heads * size * d), 4);
      const auto values = Numbers<T>(static_cast<size_t>(blocks * kv_heads * size * d), 5);
      const auto q = Numbers<T>(static_cast<size_t>(total * heads * d), 6);
      std::vector<int32_t> table;
      for (int32_t i = 0; i < 40; ++i) table.push_back((i * 7 + 3) % static_cast<int32_t>(blocks));
      PagedHead<T> head;
      head.keys = keys.data() + size * d;  // the second of two heads
      head.values = values.data() + size * d;
      head.block_stride = kv_heads * size * d;
      head.blocks = table.data();
      head.block_size = size;
      head.d = d;
      const float scale = 1 / std::sqrt(static_cast<float>(d));
      const PagedScores how = {scale, softcap, window, sinks.empty() ? nullptr : sinks.data()};
      std::vector<float> scratch(static_cast<size_t>(AttentionScratch(total)));
      std::vector<T> out(q.size()), parts(q.size());
      Attend(kernels, head, q.data(), heads * d, heads, total, 0, how, out.data(), scratch.data());
      const auto at = [&](int64_t p) {
        return static_cast<size_t>(table[static_cast<size_t>(p / size)] * head.block_stride +
                                   p % size * d);
      };
      for (int64_t t = 0; t < total; ++t) {
        for (int64_t h = 0; h < heads; ++h) {
          std::vector<double> weights;
          double sum =
              sinks.empty() ? 0 : std::exp(static_cast<double>(sinks[static_cast<size_t>(h)]));
          for (int64_t p = 0; p <= t; ++p) {
            double score = 0;
            for (int64_t i = 0; i < d; ++i) {
              score += static_cast<double>(Widen(q[static_cast<size_t>((t * heads + h) * d + i)])) *
                       static_cast<double>(Widen(head.keys[at(p) + static_cast<size_t>(i)]));
            }
            score *= static_cast<double>(scale);
            if (softcap > 0)
              score =
                  static_cast<double>(softcap) * std::tanh(score / static_cast<double>(softcap));
            weights.push_back(window > 0 && p <= t - window ? 0 : std::exp(score));
            sum += weights.back();
          }
          for (int64_t i = 0; i < d; ++i) {
            double expected = 0;
            for (int64_t p = 0; p <= t; ++p) {
              expected += weights[static_cast<size_t>(p)] / sum *
                          static_cast<double>(Widen(head.values[at(p) + static_cast<size_t>(i)]));
            }
            ASSERT_NEAR(Widen(out[static_cast<size_t>((t * heads + h) * d + i)]), expected,
                        tolerance * (1 + std::abs(expected)))
                << kernels.name << ", d " << d << ", token " << t;
          }
        }
      }
      // In pieces behind what is there already: the same bits.
      for (int64_t t = 0; t < total;) {
        const int64_t count = std::min<int64_t>(1 + t % 6, total - t);
        Attend(kernels, head, q.data() + t * heads * d, heads * d, heads, count, t, how,
               parts.data() + t * heads * d, scratch.data());
        t += count;
      }
      EXPECT_EQ(parts, out) << kernels.name << ", d " << d;
    }
  }
}

TEST(CpuDecodeTest, AttentionOverPagesIsThatOfTheDefinition) {
  for (const DecodeKernels& kernels : UsableDecodeKernels()) {
    CheckAttention<float>(kernels, 3e-6);
    CheckAttention<float>(kernels, 1e-5, 1.5f, 7);
    CheckAttention<uint16_t>(kernels, 1e-2);
    CheckAttention<uint16_t>(kernels, 1e-2, 0, 19);
    // One that all scores are far below, too.
    CheckAttention<float>(kernels, 3e-6, 0, 9, {-3, 0.5f, 30});
    CheckAttention<uint16_t>(kernels, 1e-2, 0, 0, {-3, 0.5f, 30});
  }
}

}  // namespace
}  // namespace keel::kernels
