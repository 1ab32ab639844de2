#include "trainer/engine/device_peak.h"

#include <gtest/gtest.h>

namespace keel::trainer {
namespace {

TEST(DevicePeakTest, ADeviceIsKnownByItsDriversNameAndNoOtherForIt) {
  EXPECT_EQ(PeakBf16Flops("NVIDIA H100 80GB HBM3"), 989.4e12);
  EXPECT_EQ(PeakBf16Flops("NVIDIA H100 PCIe"), 756e12);
  EXPECT_EQ(PeakBf16Flops("NVIDIA H200"), 989.4e12);
  EXPECT_EQ(PeakBf16Flops("NVIDIA A100-SXM4-80GB"), 312e12);
  EXPECT_EQ(PeakBf16Flops("NVIDIA L4"), 121e12);
  EXPECT_EQ(PeakBf16Flops("NVIDIA L40"), 181e12);
  EXPECT_EQ(PeakBf16Flops("NVIDIA L40S"), 362e12);
  for (const char* other : {"", "NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 4090 D",
                            "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA A1000", "Tesla V100"})
    EXPECT_FALSE(PeakBf16Flops(other)) << other;
}

}  // namespace
}  // namespace keel::trainer
