// Keel's own kernels for tensors that are not computed by kernels for hosts (host_kernels.h).
#pragma once

#include <ATen/ATen.h>

#include <optional>

#include "gpu/kernel_table.h"

namespace keel::parallel {

struct DeviceKernels {
  const gpu::KernelTable& table;
  gpu::Stream stream;  // the current one
};

// Those of a device. nullopt: operations there are PyTorch's, as the module was
// built without nvcc, or, on a host, under KEEL_DEVICE_PATHS=aten. Under KEEL_DEVICE_PATHS=1 the
// kernels' bodies run on the host.
std::optional<DeviceKernels> KernelsFor(const at::Device& device);
inline std::optional<DeviceKernels> KernelsFor(const at::Tensor& tensor) {
  return KernelsFor(tensor.device());
}

// Throws unless the tensor is of fp32 or bf16.
gpu::Element ElementOf(const at::Tensor& tensor);

}  // namespace keel::parallel
