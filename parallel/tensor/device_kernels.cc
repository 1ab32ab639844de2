#include "parallel/tensor/device_kernels.h"

#include "parallel/groups/cuda_module.h"
#include "parallel/tensor/host_kernels.h"

namespace keel::parallel {

std::optional<DeviceKernels> KernelsFor(const at::Device& device) {
  if (device.is_cpu()) {
    if (WayOnHost() != HostWay::kBodies) return std::nullopt;
    return DeviceKernels{gpu::HostKernelTable(), nullptr};
  }
  const Result<CudaModule*> module = LoadCudaModule();
  if (!module.ok()) return std::nullopt;
  const gpu::KernelTable* table = (*module)->Kernels();
  if (table == nullptr) return std::nullopt;
  return DeviceKernels{*table, (*module)->CurrentStream()};
}

gpu::Element ElementOf(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return gpu::Element::kF32;
  TORCH_CHECK(tensor.scalar_type() == at::kBFloat16, "expected float32 or bfloat16, found ",
              tensor.scalar_type());
  return gpu::Element::kBf16;
}

}  // namespace keel::parallel
