#include "parallel/tensor/host_kernels.h"

#include <cstdlib>
#include <string_view>

namespace keel::parallel {

HostWay WayOnHost() {
  static const HostWay way = [] {
    const char* value = std::getenv("KEEL_DEVICE_PATHS");
    const std::string_view name = value != nullptr ? value : "";
    if (name == "1") return HostWay::kBodies;
    return name == "aten" ? HostWay::kAten : HostWay::kHostKernels;
  }();
  return way;
}

bool ByHostKernels(const at::Tensor& tensor) {
  return tensor.is_cpu() && WayOnHost() == HostWay::kHostKernels;
}

}  // namespace keel::parallel
