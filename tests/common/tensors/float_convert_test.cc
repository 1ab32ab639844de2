// fp16 of fp32: every fp16 value comes back, and what lies between two becomes the nearer one, of
// two as near the even one.

#include "common/tensors/float_convert.h"

#include <gtest/gtest.h>

#include <cmath>

namespace keel {
namespace {

TEST(FloatConvertTest, EveryFloat16ComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float wide = Float16ToFloat(half);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(Float16ToFloat(FloatToFloat16(wide))));
    } else {
      ASSERT_EQ(FloatToFloat16(wide), half);
    }
  }
}

TEST(FloatConvertTest, BetweenTwoTheNearerAndOfTwoAsNearTheEven) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const auto low = static_cast<uint16_t>(bits), high = static_cast<uint16_t>(bits + 1);
    const float a = Float16ToFloat(low), b = Float16ToFloat(high);
    const float middle = a + (b - a) / 2;
    const uint16_t even = (bits & 1) == 0 ? low : high;
    for (const float sign : {1.0f, -1.0f}) {
      const uint16_t minus = sign < 0 ? 0x8000 : 0;
      ASSERT_EQ(FloatToFloat16(sign * middle), even | minus) << bits;
      ASSERT_EQ(FloatToFloat16(sign * std::nextafter(middle, a)), low | minus) << bits;
      ASSERT_EQ(FloatToFloat16(sign * std::nextafter(middle, b)), high | minus) << bits;
    }
  }
}

TEST(FloatConvertTest, BeyondTheLargestIsInfinity) {
  EXPECT_EQ(FloatToFloat16(65504.0f), 0x7bff);
  EXPECT_EQ(FloatToFloat16(65519.99f), 0x7bff);
  EXPECT_EQ(FloatToFloat16(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToFloat16(-1e30f), 0xfc00);
  EXPECT_EQ(FloatToFloat16(std::ldexp(1.0f, -26)), 0);
}

}  // namespace
}  // namespace keel
