#include "rollout/kv_capacity.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "common/status.h"
#include "parallel/groups/cuda_module.h"
#include "rollout/block_manager.h"
#include "rollout/kv_cache.h"

namespace keel::rollout {

namespace {

constexpr int64_t kMostHostCache = int64_t{1} << 30;

int64_t FreeBytes(at::Device device) {
  return UsableBytes(
      ValueOrThrow(parallel::LoadCudaModule())->Memory(device.has_index() ? device.index() : 0));
}

}  // namespace

int64_t UsableBytes(const parallel::CudaMemory& memory) {
  return memory.free + memory.reserved - memory.allocated;
}

KvGroups GroupsOf(const model::KvShape& shape, int64_t max_model_len) {
  std::vector<int64_t> windows = shape.windows;
  for (int64_t& window : windows) window = window >= max_model_len ? 0 : window;
  return GroupLayers(windows);
}

KvCapacity CapacityOf(const KvBudget& budget, const model::KvShape& shape, const KvGroups& groups) {
  const int64_t block_bytes = KvCache::BlockBytes(shape, groups, budget.block_size);
  const int64_t state_bytes = shape.bytes_per_sequence();
  const BlockManager one(1, budget.block_size, false, groups.windows);
  const int64_t text_bytes =
      block_bytes * one.MostBlocks(budget.max_model_len, budget.at_once) + state_bytes;
  int64_t bytes = budget.bytes;
  if (bytes == 0 && shape.device.is_cuda()) {
    bytes = static_cast<int64_t>(budget.gpu_memory_utilization *
                                 static_cast<double>(FreeBytes(shape.device)));
  } else if (bytes == 0) {
    bytes = std::min(kMostHostCache, budget.max_num_seqs * text_bytes);
  }
  // As many states as whole texts have room for, or half of the memory where texts are long: few
  // are ever as long as they may be. One whole text has room in any case, where there is so much.
  KvCapacity capacity;
  if (state_bytes > 0) {
    const int64_t beside_a_text = (bytes - (text_bytes - state_bytes)) / state_bytes;
    const int64_t wished = std::max(bytes / 2 / state_bytes, bytes / text_bytes);
    capacity.states =
        std::clamp<int64_t>(std::min(wished, beside_a_text), int64_t{1}, budget.max_num_seqs);
  }
  const int64_t left = bytes - capacity.states * state_bytes;
  if (left < block_bytes) {
    throw Error(
        StatusCode::kConfig,
        fmt::format("the KV cache of {} bytes holds no block of {} tokens, which takes {}{}", bytes,
                    budget.block_size, block_bytes,
                    state_bytes > 0
                        ? fmt::format(", beside a sequence's states, which take {}", state_bytes)
                        : ""));
  }
  // A token's place in the cache is 32 bits for a device's kernels.
  const int64_t most = std::numeric_limits<int32_t>::max() / budget.block_size;
  capacity.blocks = std::min(left / block_bytes, most);
  return capacity;
}

KvCapacity LeastCapacity(const KvCapacity& mine, parallel::ProcessGroup& tp, at::Device device) {
  if (tp.size() == 1) return mine;
  at::Tensor least = at::tensor({mine.blocks, mine.states}, at::kLong).to(device);
  tp.AllReduce(least, parallel::ReduceOp::kMin);
  least = least.to(at::kCPU);
  return {least[0].item<int64_t>(), least[1].item<int64_t>()};
}

}  // namespace keel::rollout
