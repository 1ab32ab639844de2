// Which way an operation on a tensor in host memory goes.
#pragma once

#include <ATen/ATen.h>

namespace keel::parallel {

// By Keel's kernels for hosts, unless KEEL_DEVICE_PATHS stands in the environment: then what a GPU
// would run is run on the host, so that tests hold it where there is no GPU.
enum class HostWay {
  kHostKernels,
  kBodies,  // KEEL_DEVICE_PATHS=1: the bodies of Keel's kernels for GPUs (device_kernels.h)
  kAten,    // KEEL_DEVICE_PATHS=aten: PyTorch's operations, as on a GPU without these kernels
};
HostWay WayOnHost();

// True for a tensor in host memory whose way is that of kernels for hosts.
bool ByHostKernels(const at::Tensor& tensor);

}  // namespace keel::parallel
