// What the module asks of a driver, on one that is made up (tests/support/pretend_gpu/said_gpu.cc).
#include "parallel/groups/cuda/device_range.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "parallel/groups/cuda_module.h"

namespace keel::parallel {
namespace {

template <typename Function>
Function Said(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}
std::string Calls() { return Said<const char* (*)()>("keel_said_calls")(); }
void BeFull(int times) { Said<void (*)(int)>("keel_said_full")(times); }
int64_t MemoryThere() { return Said<int64_t (*)()>("keel_said_memory")(); }

constexpr int64_t kPage = int64_t{2} << 20;

class DeviceRangeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (Said<void*>("keel_said_calls") == nullptr) GTEST_SKIP() << "needs the made-up driver";
    module_ = ValueOrThrow(LoadCudaModule());
    static_cast<void>(module_->Memory(0));  // as at the start of every run
    Calls();
  }
  std::unique_ptr<DeviceRange> Reserve(int64_t bytes) {
    return ValueOrThrow(module_->Reserve(0, static_cast<size_t>(bytes)));
  }
  CudaModule* module_ = nullptr;
};

TEST_F(DeviceRangeTest, MemoryComesAndGoesAtOneAddress) {
  {
    const auto range = Reserve(3 * kPage - 5);
    EXPECT_EQ(Calls(), "reserve:3 ");
    void* const address = range->address();
    for (int cycle = 0; cycle < 3; ++cycle) {
      ASSERT_TRUE(range->Map().ok());
      ASSERT_TRUE(range->Map().ok());  // it is there
      EXPECT_EQ(Calls(), "create:3 map:3 release access:3 ");
      EXPECT_EQ(MemoryThere(), 3 * kPage);
      EXPECT_EQ(range->address(), address);
      range->Unmap();
      range->Unmap();
      EXPECT_EQ(Calls(), "wait unmap:3 ");  // nothing under way may still use it
      EXPECT_EQ(MemoryThere(), 0);
    }
    ASSERT_TRUE(range->Map().ok());
    Calls();
  }
  EXPECT_EQ(Calls(), "wait unmap:3 unreserve:3 ");
  EXPECT_EQ(MemoryThere(), 0);
}

// PyTorch's cache is given back before memory is said to be missing.
TEST_F(DeviceRangeTest, AFullDeviceIsAskedOnceMore) {
  const auto range = Reserve(kPage);
  BeFull(1);
  EXPECT_TRUE(range->Map().ok());
  EXPECT_THAT(Calls(), ::testing::HasSubstr("full create:1 map:1"));
  range->Unmap();
  BeFull(2);
  const Status none = range->Map();
  EXPECT_EQ(none.code(), StatusCode::kUnavailable);
  EXPECT_THAT(none.message(), ::testing::HasSubstr("2097152 bytes"));
  EXPECT_EQ(MemoryThere(), 0);
  EXPECT_TRUE(range->Map().ok());
}

// What is mapped counts with what tensors have, also at most.
TEST_F(DeviceRangeTest, TheModuleCountsWhatIsMapped) {
  const int64_t before = module_->Memory(0).allocated;
  {
    const auto one = Reserve(2 * kPage);
    ASSERT_TRUE(one->Map().ok());
    EXPECT_EQ(module_->Memory(0).allocated, before + 2 * kPage);
    one->Unmap();
    EXPECT_EQ(module_->Memory(0).allocated, before);
    EXPECT_GE(module_->Memory(0).peak_allocated, before + 2 * kPage);
  }
  EXPECT_EQ(module_->Memory(0).reserved, module_->Memory(0).allocated);
}

TEST_F(DeviceRangeTest, ADeviceWithoutVirtualMemoryHasNone) {
  ::setenv("KEEL_SAID_NO_VMM", "1", 1);
  const auto range = module_->Reserve(0, 100);
  ::unsetenv("KEEL_SAID_NO_VMM");
  EXPECT_EQ(range.status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace keel::parallel
