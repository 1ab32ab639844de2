#include "parallel/groups/tensor_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "parallel/groups/cuda_module.h"
#include "tests/support/ranks.h"

namespace keel::parallel {
namespace {

at::Device TheDevice() {
  if (!keel::testing::OnPretendGpus()) return at::kCPU;
  static_cast<void>(ValueOrThrow(LoadCudaModule()));  // before the first tensor
  return {at::kCUDA, 0};
}

at::Tensor Numbers(int64_t n) {
  return at::arange(n, at::TensorOptions(at::kFloat).device(TheDevice()));
}

// By their addresses alone: a host may not read what is there.
const void* AddressOf(const at::Tensor& t) { return t.const_data_ptr(); }

TEST(TensorMemory, GoesAndComesBackToOnePlaceUnderTheTensorsViews) {
  const at::Tensor whole = Numbers(5000);
  const at::Tensor view = whole.narrow(0, 100, 50);
  TensorMemory memory(whole);
  EXPECT_TRUE(memory.there());
  EXPECT_FALSE(memory.stays());
  memory.Release();
  memory.Release();
  EXPECT_FALSE(memory.there());
  EXPECT_EQ(whole.storage().nbytes(), 0u);
  memory.Restore();
  EXPECT_TRUE(memory.stays());
  const void* const place = AddressOf(whole);
  for (int cycle = 0; cycle < 20; ++cycle) {
    whole.fill_(cycle);
    EXPECT_EQ(view.sum().item<float>(), 50.0f * static_cast<float>(cycle));
    memory.Restore();  // it is there
    EXPECT_EQ(view.sum().item<float>(), 50.0f * static_cast<float>(cycle));
    memory.Release();
    EXPECT_FALSE(memory.there());
    const at::Tensor other = Numbers(5000);  // would take the place of a freed block
    memory.Restore();
    EXPECT_EQ(AddressOf(whole), place);
    EXPECT_EQ(static_cast<const float*>(AddressOf(view)), static_cast<const float*>(place) + 100);
  }
}

TEST(TensorMemory, LivesAsLongAsATensorHasIt) {
  at::Tensor view;
  {
    const at::Tensor whole = Numbers(300000);
    TensorMemory memory(whole);
    memory.Release();
    memory.Restore();
    whole.fill_(2);
    view = whole.narrow(0, 200000, 10);
  }
  EXPECT_EQ(view.sum().item<float>(), 20);
}

TEST(TensorMemory, NothingIsAlwaysThere) {
  TensorMemory memory(Numbers(0));
  memory.Release();
  EXPECT_TRUE(memory.there());
  memory.Restore();
}

TEST(TensorMemory, PartOfAStorageIsRefused) {
  EXPECT_THROW(TensorMemory(Numbers(10).narrow(0, 0, 5)), c10::Error);
}

class MemoryOfTheHost final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    ++given;
    void* memory = std::malloc(bytes);
    return {memory, memory, &std::free, at::kCPU};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  int given = 0;
};

TEST(TensorMemory, OfAnAllocatorOfItsOwnIsThatAllocators) {
  MemoryOfTheHost allocator;
  const c10::Storage storage(c10::Storage::use_byte_size_t(), 400, &allocator, true);
  TensorMemory memory(at::empty({0}, at::kFloat).set_(storage, 0, {100}));
  memory.Release();
  memory.Restore();
  EXPECT_EQ(allocator.given, 2);
  EXPECT_FALSE(memory.stays());
}

class DeviceMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!keel::testing::OnPretendGpus()) GTEST_SKIP() << "needs a GPU, or a pretend one";
  }
};

int64_t Allocated() { return ValueOrThrow(LoadCudaModule())->Memory(0).allocated; }

TEST_F(DeviceMemory, GoesBackToTheDriverAndNotIntoACache) {
  const at::Tensor whole = Numbers(1 << 20);
  TensorMemory memory(whole);
  memory.Release();
  const int64_t without = Allocated();
  for (int cycle = 0; cycle < 100; ++cycle) {
    memory.Restore();
    EXPECT_EQ(Allocated(), without + (4 << 20));
    memory.Release();
    EXPECT_EQ(Allocated(), without);
  }
}

TEST_F(DeviceMemory, ThatIsNotToBeHadIsAnErrorAfterWhichItCanComeStill) {
  TensorMemory memory(Numbers(32 << 20));  // 128 of 512 MiB
  memory.Release();
  {
    const at::Tensor others =
        at::empty({100 << 20}, at::TensorOptions(at::kFloat).device(TheDevice()));
    EXPECT_THROW(memory.Restore(), c10::OutOfMemoryError);
    EXPECT_FALSE(memory.there());
  }
  memory.Restore();
  at::Tensor(memory.tensor()).fill_(1);
  EXPECT_EQ(memory.tensor().sum().item<float>(), 32 << 20);
}

// Without virtual memory management: elsewhere each time, or not, but there.
TEST_F(DeviceMemory, IsTheAllocatorsWhereTheDeviceMapsNone) {
  ::setenv("KEEL_PRETEND_RANGES", "0", 1);
  TensorMemory memory(Numbers(1000));
  memory.Release();
  memory.Restore();
  ::unsetenv("KEEL_PRETEND_RANGES");
  EXPECT_FALSE(memory.stays());
  at::Tensor(memory.tensor()).fill_(1);
  EXPECT_EQ(memory.tensor().sum().item<float>(), 1000);
}

TEST_F(DeviceMemory, ThatIsGoneMayNotBeTouchedByTheDevice) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const at::Tensor whole = Numbers(1 << 16);
  TensorMemory memory(whole);
  memory.Release();
  memory.Restore();
  const void* const place = AddressOf(whole);
  memory.Release();
  CudaModule* const module = ValueOrThrow(LoadCudaModule());
  const at::Tensor to = at::zeros({8}, at::TensorOptions(at::kDouble).device(TheDevice()));
  const gpu::SumOfSquares args{64, static_cast<const float*>(place), to.data_ptr<double>()};
  EXPECT_DEATH(module->Kernels()->sum_of_squares(args, nullptr), "addresses without memory");
}

}  // namespace
}  // namespace keel::parallel
