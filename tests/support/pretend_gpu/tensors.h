// Tensors of a pretend GPU as the host's kernels take them, and back.
#pragma once

#include <ATen/ATen.h>

namespace keel::testing::pretend {

// The same elements as a tensor of the host, which writes them, too. One of no elements has memory
// of its own.
at::Tensor HostViewOf(const at::Tensor& there);
at::Tensor ToDevice(const at::Tensor& host, at::Device device);

}  // namespace keel::testing::pretend
