#include "parallel/tensor/host_kernels.h"

#include <cstdlib>
#include <string_view>

namespace keel::parallel {

bool ByHostKernels(const at::Tensor& tensor) {
  static const bool device_paths = [] {
    const char* value = std::getenv("KEEL_DEVICE_PATHS");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return tensor.is_cpu() && !device_paths;
}

}  // namespace keel::parallel
