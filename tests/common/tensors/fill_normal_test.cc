#include "common/tensors/fill_normal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "common/hash.h"

namespace keel {
namespace {

TEST(FillNormalTest, AFillDependsOnNoBox) {
  const Dims shape{7, 13};
  const Philox rng(3, Hash64("w"));
  std::vector<float> whole(91);
  FillNormal(rng, shape, Box::Whole(shape), {reinterpret_cast<std::byte*>(whole.data()), {13, 1}},
             DType::kF32, 0, 2);
  for (int64_t row = 0; row < 7; row += 2) {
    for (int64_t column = 0; column < 13; column += 5) {
      const Box box{{row, column},
                    {std::min<int64_t>(2, 7 - row), std::min<int64_t>(5, 13 - column)}};
      std::vector<float> part(static_cast<size_t>(box.elements()));
      FillNormal(rng, shape, box,
                 {reinterpret_cast<std::byte*>(part.data()), ContiguousStrides(box.size)},
                 DType::kF32, 0, 2);
      for (int64_t i = 0; i < box.size[0]; ++i) {
        for (int64_t j = 0; j < box.size[1]; ++j) {
          EXPECT_EQ(part[static_cast<size_t>(i * box.size[1] + j)],
                    whole[static_cast<size_t>((row + i) * 13 + column + j)]);
        }
      }
    }
  }
}

TEST(FillNormalTest, AFillIsTheStreamsDraws) {
  const Philox rng(5, Hash64("w"));
  const Dims shape{3, 4, 5};
  std::vector<float> values(60);
  std::vector<uint16_t> halves(60);
  FillNormal(rng, shape, Box::Whole(shape),
             {reinterpret_cast<std::byte*>(values.data()), ContiguousStrides(shape)}, DType::kF32,
             2, 3);
  FillNormal(rng, shape, Box::Whole(shape),
             {reinterpret_cast<std::byte*>(halves.data()), ContiguousStrides(shape)}, DType::kBF16,
             2, 3);
  for (uint64_t i = 0; i < 60; ++i) {
    EXPECT_NEAR(values[i], 2 + 3 * rng.Normal(i), 1e-5);
    const float rounded = std::bit_cast<float>(static_cast<uint32_t>(halves[i]) << 16);
    EXPECT_LE(std::fabs(rounded - values[i]), std::ldexp(std::fabs(values[i]), -8));
  }
  // A scalar is draw 0; nothing is written for an empty box; other dtypes are a bug.
  float scalar = 0;
  FillNormal(rng, Dims{}, Box::Whole(Dims{}), {reinterpret_cast<std::byte*>(&scalar), Dims{}},
             DType::kF32, 2, 3);
  EXPECT_EQ(scalar, values[0]);
  FillNormal(rng, shape, {Dims{1, 1, 1}, Dims{1, 0, 1}}, {nullptr, Dims{1, 1, 1}}, DType::kF32, 0,
             1);
  EXPECT_THROW(FillNormal(rng, shape, Box::Whole(shape), {}, DType::kF16, 0, 1), Error);
}

TEST(FillNormalTest, NormalsHaveTheirMoments) {
  const int64_t n = 1 << 18;
  std::vector<float> values(static_cast<size_t>(n));
  FillNormal(Philox(1, 2), {n}, Box::Whole({n}), {reinterpret_cast<std::byte*>(values.data()), {1}},
             DType::kF32, 1, 3);
  double sum = 0, squares = 0;
  for (const float v : values) {
    sum += v;
    squares += (v - 1.0) * (v - 1.0);
  }
  EXPECT_NEAR(sum / n, 1, 4 * 3 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), 3, 4 * 3 / std::sqrt(2.0 * n));
}

}  // namespace
}  // namespace keel
