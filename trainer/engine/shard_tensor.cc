#include "trainer/engine/shard_tensor.h"

#include <vector>

#include "common/tensors/tensor_digest.h"
#include "parallel/tensor/device_kernels.h"

namespace keel::trainer {

namespace {

at::ScalarType BitsOf(DType dtype) {
  switch (DTypeSize(dtype)) {
    case 1:
      return at::kByte;
    case 2:
      return at::kShort;
    case 4:
      return at::kInt;
    default:
      return at::kLong;
  }
}

// Rows that are runs in the device's memory: of a vector, of a matrix, or of one matrix of several.
bool HasRuns(const Shard& shard) {
  const int dims = shard.box.dims();
  for (int d = 0; d + 2 < dims; ++d)
    if (shard.box.size[d] != 1) return false;
  return dims > 0 && shard.view.strides[dims - 1] == 1;
}

uint64_t DigestByKernel(const parallel::DeviceKernels& kernels, const TensorInfo& tensor,
                        const Shard& shard, const at::Device& device) {
  const int last = shard.box.dims() - 1;
  const bool matrix = last > 0;
  int64_t first = 0;  // element of the box, in the tensor
  for (int d = 0; d <= last; ++d) first = first * tensor.shape[d] + shard.box.offset[d];
  gpu::TensorDigest digest;
  digest.element_size = static_cast<int64_t>(DTypeSize(tensor.dtype));
  digest.rows = matrix ? shard.box.size[last - 1] : 1;
  digest.columns = shard.box.size[last];
  digest.data = shard.view.data;
  digest.stride = matrix ? shard.view.strides[last - 1] : 0;
  digest.index_stride = matrix ? tensor.shape[last] : 0;
  digest.index = first;
  const at::Tensor parts = at::empty({gpu::DigestParts(digest.rows * digest.columns)},
                                     at::TensorOptions().dtype(at::kLong).device(device));
  digest.parts = parts.data_ptr<int64_t>();
  kernels.table.tensor_digest(digest, kernels.stream);
  return static_cast<uint64_t>(parts.sum().item<int64_t>());
}

}  // namespace

at::Tensor TensorOf(const Shard& shard, const Box& box, DType dtype, const at::Device& device) {
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  for (int d = 0; d < box.dims(); ++d) {
    sizes.push_back(box.size[d]);
    strides.push_back(shard.view.strides[d]);
    offset += (box.offset[d] - shard.box.offset[d]) * shard.view.strides[d];
  }
  return at::from_blob(
      shard.view.data + offset * static_cast<int64_t>(DTypeSize(dtype)), sizes, strides,
      [](void*) {}, at::TensorOptions().dtype(BitsOf(dtype)).device(device), device);
}

uint64_t ShardDigest(const TensorInfo& tensor, const Shard& shard, const at::Device& device) {
  if (shard.box.empty()) return 0;
  if (const auto kernels = parallel::KernelsFor(device); kernels && HasRuns(shard))
    return DigestByKernel(*kernels, tensor, shard, device);
  if (device.is_cpu())
    return BoxDigest(tensor.shape, tensor.dtype, shard.box, shard.box, shard.view);
  const at::Tensor host = TensorOf(shard, shard.box, tensor.dtype, device).contiguous().cpu();
  return BoxDigest(tensor.shape, tensor.dtype, shard.box, shard.box,
                   {static_cast<std::byte*>(host.data_ptr()), ContiguousStrides(shard.box.size)});
}

}  // namespace keel::trainer
