#include "trainer/engine/weights_digest.h"

#include <ATen/ATen.h>

#include <span>
#include <vector>

#include "common/hash.h"
#include "common/tensor_digest.h"

namespace keel::trainer {

uint64_t WeightsDigest(TrainEngine& engine, parallel::ProcessGroup& world) {
  const at::Device device = engine.options().device;
  Residency& residency = engine.residency();
  const Place before = residency.place(StateClass::kParams);
  residency.LoadToRead(StateClass::kParams);
  const ShardTable table = engine.DeviceTable();
  uint64_t sum = 0;
  for (const Shard& shard : table.shards()) {
    if (shard.replica != 0) continue;
    const TensorInfo& tensor = table.tensor_of(shard);
    const uint64_t name = Hash128(std::as_bytes(std::span(tensor.name))).low | 1;
    StridedView view = shard.view;
    at::Tensor host;  // a device's values are brought here a shard at a time
    if (!device.is_cpu() && !shard.box.empty()) {
      std::vector<int64_t> sizes, strides;
      for (int d = 0; d < shard.box.dims(); ++d) {
        sizes.push_back(shard.box.size[d]);
        strides.push_back(shard.view.strides[d]);
      }
      const auto options = at::TensorOptions().dtype(engine.options().dtype).device(device);
      host = at::from_blob(
                 shard.view.data, sizes, strides, [](void*) {}, options, device)
                 .contiguous()
                 .cpu();
      view = {static_cast<std::byte*>(host.data_ptr()), ContiguousStrides(shard.box.size)};
    }
    sum += name * BoxDigest(tensor.shape, tensor.dtype, shard.box, shard.box, view);
  }
  residency.Restore(StateClass::kParams, before);
  at::Tensor total = at::full({1}, static_cast<int64_t>(sum), at::kLong).to(device);
  world.AllReduce(total);
  return static_cast<uint64_t>(total.cpu().item<int64_t>());
}

}  // namespace keel::trainer
