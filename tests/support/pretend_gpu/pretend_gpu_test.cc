// That the pretend GPU refuses what a GPU would: this program runs with KEEL_CUDA_MODULE.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "parallel/groups/cuda_module.h"
#include "parallel/groups/host_staged_group.h"

namespace keel::testing {
namespace {

class PretendGpu : public ::testing::Test {
 protected:
  PretendGpu() : module_(*ValueOrThrow(parallel::LoadCudaModule())) { module_.SetDevice(1); }

  parallel::CudaModule& module_;
  const at::Device device_{at::kCUDA, 1};
};

using PretendGpuDeathTest = PretendGpu;

TEST_F(PretendGpu, ComputesWhatTheHostDoes) {
  const at::Tensor a = at::arange(12, at::kFloat).view({3, 4}), b = at::ones({4, 2}) * 0.5;
  const at::Tensor there = at::mm(a.to(device_), b.to(device_)).relu_().add(1);
  EXPECT_EQ(there.device(), device_);
  EXPECT_TRUE(at::equal(there.cpu(), at::mm(a, b).relu_().add(1)));
  // Views share memory, results of no fixed size find theirs, lists are lists.
  at::Tensor x = a.to(device_);
  x.select(0, 1).fill_(7);
  x.narrow(1, 0, 2).mul_(2);
  EXPECT_EQ(
      x.cpu().sum().item<float>(),
      (at::tensor({0, 2, 2, 3, 14, 14, 7, 7, 16, 18, 10, 11}, at::kFloat)).sum().item<float>());
  EXPECT_TRUE(at::equal(at::nonzero(x.gt(9)).cpu(), at::nonzero(x.cpu().gt(9))));
  EXPECT_TRUE(at::equal(at::cat({x, x}, 1).cpu(), at::cat({x.cpu(), x.cpu()}, 1)));
  EXPECT_TRUE(at::equal(at::arange(5, at::TensorOptions(device_)).cpu(), at::arange(5)));
  at::Tensor grows = at::empty({0}, x.options());
  at::add_out(grows, x, x);
  EXPECT_TRUE(at::equal(grows.cpu(), x.cpu() * 2));
}

TEST_F(PretendGpu, DifferentiatesOnAThreadOfTheDevice) {
  const at::Tensor x = at::arange(6, at::kFloat).to(device_).requires_grad_();
  (x * x).sum().backward();
  EXPECT_TRUE(at::equal(x.grad().cpu(), at::arange(6, at::kFloat) * 2));
}

TEST_F(PretendGpuDeathTest, AHostThatReadsItsMemoryEnds) {
  const at::Tensor there = at::zeros({8}, at::TensorOptions(device_));
  const auto* const address = there.const_data_ptr<float>();
  EXPECT_DEATH((void)*static_cast<const volatile float*>(address),
               "the host touched memory of the device");
}

TEST_F(PretendGpu, ReplaysWhatItRecorded) {
  const at::Tensor in = at::ones({3, 4}).to(device_), w = at::ones({4, 2}).to(device_);
  at::Tensor out, sum = at::zeros({1}).to(device_);
  auto recording = ValueOrThrow(module_.Record(
      [&] {
        out = at::mm(in, w).mul_(2);
        sum.copy_(out.sum().view({1}));
      },
      nullptr));
  EXPECT_TRUE(out.cpu().isnan().all().item<bool>());  // recorded, and not done
  recording->Replay();
  EXPECT_EQ(sum.cpu().item<float>(), 3 * 2 * 8);
  in.fill_(3);
  recording->Replay();
  EXPECT_EQ(sum.cpu().item<float>(), 3 * 2 * 24);
  EXPECT_EQ(out.cpu()[2][1].item<float>(), 24);
}

TEST_F(PretendGpu, RecordsNothingThatTheHostHasAPartIn) {
  const at::Tensor there = at::ones({4}).to(device_);
  const auto refused = [&](const std::function<void()>& second) {
    bool again = false;
    const auto recording = module_.Record(
        [&] {
          if (again) second();
          again = true;
        },
        nullptr);
    return recording.ok() ? "" : std::string(recording.status().message());
  };
  EXPECT_EQ(refused([&] { (void)there.add(1); }), "");
  EXPECT_NE(refused([&] { (void)there.sum().item<float>(); }), "");
  EXPECT_NE(refused([&] { (void)there.cpu(); }), "");
  EXPECT_NE(refused([&] { (void)at::ones({4}).to(device_, at::kFloat, true); }), "");
  EXPECT_NE(refused([&] { module_.Synchronize(); }), "");
  EXPECT_EQ(there.sum().item<float>(), 4);  // and goes on
}

TEST_F(PretendGpu, MemoryThatNobodyWroteIsNaN) {
  EXPECT_TRUE(at::empty({100}, at::TensorOptions(device_)).cpu().isnan().all().item<bool>());
}

TEST_F(PretendGpu, CopiesAreLate) {
  const at::Tensor there = at::full({1000}, 3.0, at::TensorOptions(device_).dtype(at::kFloat));
  const auto bytes = static_cast<size_t>(there.nbytes());
  auto* const host = static_cast<float*>(ValueOrThrow(module_.AllocatePinned(bytes)));
  // A thread that looks late itself may find it there; not each time.
  bool late = false;
  for (int i = 0; i < 100 && !late; ++i) {
    std::memset(host, 0, bytes);
    const int64_t ticket = module_.CopyToHost(host, there.const_data_ptr(), bytes);
    late = static_cast<volatile float*>(host)[0] == 0;
    EXPECT_TRUE(module_.WaitCopy(ticket).ok());
    EXPECT_EQ(host[999], 3);
  }
  EXPECT_TRUE(late);
  module_.FreePinned(host);
}

TEST_F(PretendGpu, AKernelTakesNoAddressOfTheHost) {
  std::vector<float> x(64);
  double sum = 0;
  const gpu::SumOfSquares args{64, x.data(), &sum};
  EXPECT_THROW(module_.Kernels()->sum_of_squares(args, nullptr), std::runtime_error);
}

TEST_F(PretendGpu, AKernelTakesNoMemoryOfAnotherDeviceThanItsThreads) {
  const at::Tensor x = at::ones({64}, at::TensorOptions(device_).dtype(at::kFloat));
  const at::Tensor sum = at::zeros({1}, at::TensorOptions(device_).dtype(at::kDouble));
  const gpu::SumOfSquares args{64, x.const_data_ptr<float>(), sum.data_ptr<double>()};
  module_.Kernels()->sum_of_squares(args, nullptr);
  EXPECT_EQ(sum.item<double>(), 64);
  std::thread([&] {
    EXPECT_THROW(module_.Kernels()->sum_of_squares(args, nullptr), std::runtime_error);
    module_.SetDevice(1);
    EXPECT_NO_THROW(module_.Kernels()->sum_of_squares(args, nullptr));
  }).join();
}

TEST_F(PretendGpu, AnOperationTakesNoTensorOfTheHost) {
  const at::Tensor there = at::ones({3}, at::TensorOptions(device_));
  EXPECT_TRUE(at::equal((there + at::scalar_tensor(2)).cpu(), at::full({3}, 3.0)));
  EXPECT_THROW(there + at::ones({3}), c10::Error);
  EXPECT_THROW(there.index_select(0, at::zeros({1}, at::kLong)), c10::Error);
}

TEST_F(PretendGpu, GivesMemoryBack) {
  const int64_t before = module_.Memory(1).allocated;
  {
    const at::Tensor there = at::empty({1 << 20}, at::TensorOptions(device_));
    EXPECT_GE(module_.Memory(1).allocated, before + (4 << 20));
  }
  EXPECT_EQ(module_.Memory(1).allocated, before);
}

}  // namespace
}  // namespace keel::testing
