#include "trainer/engine/weights_digest.h"

#include <ATen/ATen.h>

#include "common/tensors/tensor_digest.h"
#include "trainer/engine/shard_tensor.h"

namespace keel::trainer {

uint64_t WeightsDigest(const ShardTable& table, at::Device device, parallel::ProcessGroup& group) {
  uint64_t sum = 0;
  for (const Shard& shard : table.shards()) {
    if (shard.replica != 0) continue;
    const TensorInfo& tensor = table.tensor_of(shard);
    sum += DigestWeight(tensor.name) * ShardDigest(tensor, shard, device);
  }
  at::Tensor total = at::full({1}, static_cast<int64_t>(sum), at::kLong).to(device);
  group.AllReduce(total);
  const auto all = static_cast<uint64_t>(total.cpu().item<int64_t>());
  group.CheckAlive();  // else it is the digest of nothing
  return all;
}

uint64_t WeightsDigest(TrainEngine& engine, TrainEngine::Which which,
                       parallel::ProcessGroup& world) {
  Residency& residency = engine.residency();
  const Place before = residency.place(StateClass::kParams);
  residency.LoadToRead(StateClass::kParams);
  const uint64_t digest = WeightsDigest(engine.DeviceTable(which), engine.options().device, world);
  residency.Restore(StateClass::kParams, before);
  return digest;
}

}  // namespace keel::trainer
