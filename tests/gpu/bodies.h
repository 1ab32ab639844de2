// How the tests of kernels run a body: on the host, lanes and teams forward and backward, to the
// same bits, and under KEEL_GPU_BODIES=device on GPU 0, to the same bits again (on_device.cc); and
// what they hold results against, which are made of fp64.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "gpu/kernel_table.h"
#include "parallel/tensor/device_kernels.h"

namespace keel::gpu {

// The device's kernels, each of which is waited for, on tensors of the host, whose memory both
// share then; null where they are not asked for.
const KernelTable* DeviceTable();

// What `run` makes, with lanes forward. Expects the same bits with lanes and teams backward: they
// are where a result depends on who comes first. And of the device, where it is asked for.
inline std::vector<at::Tensor> InBothOrders(
    const std::function<std::vector<at::Tensor>(const KernelTable&)>& run) {
  const std::vector<at::Tensor> forward = run(HostKernelTable(LaneOrder::kForward));
  const std::vector<at::Tensor> backward = run(HostKernelTable(LaneOrder::kBackward));
  for (size_t i = 0; i < forward.size(); ++i)
    EXPECT_TRUE(at::equal(forward[i], backward[i])) << "result " << i << " depends on the order";
  if (const KernelTable* const table = DeviceTable()) {
    const std::vector<at::Tensor> device = run(*table);
    for (size_t i = 0; i < forward.size(); ++i)
      EXPECT_TRUE(at::equal(forward[i], device[i]))
          << "result " << i << " is another on the device";
  }
  return forward;
}

inline at::Tensor Draw(uint64_t seed, at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(seed);
  return at::randn(shape, generator).to(type);
}

// A copy in fp64 that wants a gradient.
inline at::Tensor Wide(const at::Tensor& x) {
  return x.detach().to(at::kDouble).clone().requires_grad_();
}

// fp32 within 2e-6 of the size of what is expected, bf16 within half a step of rounding.
inline void ExpectClose(const at::Tensor& found, const at::Tensor& expected,
                        const std::string& what, double fp32 = 2e-6, double bf16 = 1.0 / 256) {
  const double tolerance = found.scalar_type() == at::kBFloat16 ? bf16 : fp32;
  const at::Tensor size = expected.detach().abs();
  const at::Tensor bound = (size + size.mean()) * tolerance;
  const at::Tensor error = (found.to(at::kDouble) - expected.detach()).abs();
  EXPECT_TRUE(error.le(bound).all().item<bool>())
      << what << " of " << found.scalar_type() << ": off by " << error.max().item<double>()
      << " where values are of " << size.mean().item<double>();
}

inline constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};

}  // namespace keel::gpu
