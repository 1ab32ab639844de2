#include "common/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace keel {
namespace {

// Known answers of the generator's authors (Random123, kat_vectors).
TEST(PhiloxTest, KnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, DrawsAreInTheirRangesAndStreamsDiffer) {
  const Philox rng(1, 2), stream(1, 3), seed(2, 2);
  int equal = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    EXPECT_GE(rng.Uniform(i), 0);
    EXPECT_LT(rng.Uniform(i), 1);
    EXPECT_TRUE(std::isfinite(rng.Normal(i)));
    equal += rng.Bits64(i) == stream.Bits64(i) || rng.Bits64(i) == seed.Bits64(i) ||
             rng.Bits64(i) == rng.Bits64(i + 1);
    EXPECT_EQ(rng.Below(i, 1), 0u);
  }
  EXPECT_EQ(equal, 0);
}

TEST(PhiloxTest, BelowStaysBelowAndReachesAll) {
  const Philox rng(9, 9);
  std::vector<int> seen(10);
  for (uint64_t i = 0; i < 1000; ++i) ++seen[rng.Below(i, 10)];
  for (const int count : seen) EXPECT_GT(count, 50);
}

}  // namespace
}  // namespace keel
