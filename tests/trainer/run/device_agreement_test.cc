#include "trainer/run/device_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace keel::trainer {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

TEST(DeviceAgreementTest, AWishIsReadByItsWords) {
  EXPECT_EQ(ParseDeviceWish("auto")->kind, DeviceKind::kAuto);
  EXPECT_EQ(ParseDeviceWish("cpu")->kind, DeviceKind::kCpu);
  EXPECT_FALSE(ParseDeviceWish("cuda")->index.has_value());
  EXPECT_EQ(*ParseDeviceWish("cuda:11")->index, 11);
  for (const char* wrong :
       {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "cuda:1:2", "cuda:9999"}) {
    const auto wish = ParseDeviceWish(wrong);
    EXPECT_EQ(wish.status().code(), StatusCode::kUsage) << wrong;
    EXPECT_THAT(wish.status().message(), HasSubstr("expected auto, cpu, cuda, or cuda:N"));
  }
}

TEST(DeviceAgreementTest, TheCpuIsAlwaysThere) {
  const auto offer = OfferHere({DeviceKind::kCpu, std::nullopt}, 3);
  ASSERT_TRUE(offer.ok());
  EXPECT_EQ(offer->index, -1);
  EXPECT_TRUE(DeviceOf(*offer).is_cpu());
  EXPECT_EQ(DeviceOf({2, "GPU-2", "NVIDIA H100", ""}), at::Device(at::kCUDA, 2));
}

// What each of the ranks is told.
std::vector<Result<AgreedDevice>> Agree(const std::vector<parallel::DeviceOffer>& offers,
                                        DeviceKind kind) {
  const auto world = static_cast<int>(offers.size());
  checkpoint::LocalCoordinatorHub hub(world);
  std::vector<Result<AgreedDevice>> told(offers.size(), Status(StatusCode::kInternal, "not run"));
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) {
    const auto i = static_cast<size_t>(r);
    threads.emplace_back([&, r, i] {
      told[i] = AgreeOnDevice(hub.rank(r), offers[i], {kind, std::nullopt}, seconds(20));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return told;
}

TEST(DeviceAgreementTest, ARankWithoutAGpuTakesAllToTheCpu) {
  const std::vector<parallel::DeviceOffer> offers = {{0, "GPU-0", "NVIDIA H100", ""},
                                                     {-1, "", "", "local rank 1 of 1 usable GPUs"},
                                                     {1, "GPU-1", "NVIDIA H100", ""}};
  const auto told = Agree(offers, DeviceKind::kAuto);
  for (const auto& one : told) {
    ASSERT_TRUE(one.ok()) << one.status().message();
    EXPECT_TRUE(one->device.is_cpu());
    EXPECT_THAT(one->said, HasSubstr("rank 1 has no GPU: local rank 1 of 1"));
  }
  EXPECT_TRUE(told[0]->refused);
  EXPECT_FALSE(told[1]->refused);
  // Where GPUs are demanded every rank says which one lacks it.
  for (const auto& one : Agree(offers, DeviceKind::kCuda)) {
    EXPECT_EQ(one.status().code(), StatusCode::kUnavailable);
    EXPECT_THAT(one.status().message(), HasSubstr("rank 1 has no GPU"));
  }
}

TEST(DeviceAgreementTest, EachRankComputesOnItsOwnGpu) {
  const auto told =
      Agree({{0, "GPU-0", "NVIDIA H100", ""}, {1, "GPU-1", "NVIDIA H100", ""}}, DeviceKind::kAuto);
  for (size_t r = 0; r < told.size(); ++r) {
    ASSERT_TRUE(told[r].ok());
    EXPECT_EQ(told[r]->device, at::Device(at::kCUDA, static_cast<at::DeviceIndex>(r)));
    EXPECT_FALSE(told[r]->refused);
  }
}

}  // namespace
}  // namespace keel::trainer
