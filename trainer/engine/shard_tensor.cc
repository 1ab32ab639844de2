#include "trainer/engine/shard_tensor.h"

#include <vector>

#include "common/tensor_digest.h"

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
  if (device.is_cpu())
    return BoxDigest(tensor.shape, tensor.dtype, shard.box, shard.box, shard.view);
  const at::Tensor host = TensorOf(shard, shard.box, tensor.dtype, device).contiguous().cpu();
  return BoxDigest(tensor.shape, tensor.dtype, shard.box, shard.box,
                   {static_cast<std::byte*>(host.data_ptr()), ContiguousStrides(shard.box.size)});
}

}  // namespace keel::trainer
