// Which of two ways an operation goes: by Keel's kernels for hosts, or by ATen's operations, which
// every device has.
#pragma once

#include <ATen/ATen.h>

namespace keel::parallel {

// True for a tensor in host memory, unless KEEL_DEVICE_PATHS=1 stands in the environment: then what
// a GPU would run is run on the host, so that tests hold it where there is no GPU.
bool ByHostKernels(const at::Tensor& tensor);

}  // namespace keel::parallel
