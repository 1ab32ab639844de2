#include "trainer/weights_digest.h"

#include <ATen/ATen.h>

#include "common/hash.h"
#include "common/tensor_digest.h"

namespace keel::trainer {

uint64_t WeightsDigest(TrainEngine& engine, parallel::ProcessGroup& world) {
  // The host's views: digests are taken on the CPU.
  engine.CopyToHost();
  const ShardTable table = engine.ModelTable(false);
  uint64_t sum = 0;
  for (const Shard& shard : table.shards()) {
    if (shard.replica != 0) continue;
    const TensorInfo& tensor = table.tensor_of(shard);
    const uint64_t name = Hash128(std::as_bytes(std::span(tensor.name))).low | 1;
    sum += name * BoxDigest(tensor.shape, tensor.dtype, shard.box, shard.box, shard.view);
  }
  at::Tensor total = at::full({1}, static_cast<int64_t>(sum), at::kLong);
  if (!engine.options().device.is_cpu()) total = total.to(engine.options().device);
  world.AllReduce(total);
  return static_cast<uint64_t>(total.cpu().item<int64_t>());
}

}  // namespace keel::trainer
