#include "rollout/kv_cache.h"

#include <utility>

#include "parallel/groups/cuda_module.h"

namespace keel::rollout {

KvCache::KvCache(const model::KvShape& shape, KvGroups groups, int64_t num_blocks,
                 int64_t block_size)
    : shape_(shape),
      groups_(std::move(groups)),
      num_blocks_(num_blocks),
      block_size_(block_size),
      memory_(at::empty(
          {groups_.page_layers, 2, num_blocks_, shape_.kv_heads, block_size_, shape_.head_dim},
          at::TensorOptions().dtype(shape_.dtype).device(shape_.device))) {
  // On pages of its own from the start: what goes into PyTorch's cache of a device for the first
  // time would not be the driver's again, and in the way of the next cache.
  if (!memory_.tensor().is_cpu()) {
    memory_.Release();
    ValueOrThrow(parallel::LoadCudaModule())->ReleaseCached();
    memory_.Restore();
  }
  for (int64_t slot = 0; slot < groups_.page_layers; ++slot) {
    keys_.push_back(memory_.tensor().select(0, slot).select(0, 0));
    values_.push_back(memory_.tensor().select(0, slot).select(0, 1));
  }
}

void KvCache::Copy(std::span<const BlockCopy> copies) {
  for (const BlockCopy& copy : copies) {
    for (const std::vector<at::Tensor>* side : {&keys_, &values_}) {
      for (const at::Tensor& slot : *side) slot.select(0, copy.to).copy_(slot.select(0, copy.from));
    }
  }
}

}  // namespace keel::rollout
