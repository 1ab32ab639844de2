#include "rollout/kv_cache.h"

#include <utility>

namespace keel::rollout {

KvCache::KvCache(const model::KvShape& shape, KvGroups groups, int64_t num_blocks,
                 int64_t block_size)
    : shape_(shape), groups_(std::move(groups)), num_blocks_(num_blocks), block_size_(block_size) {
  Restore();
}

void KvCache::Copy(std::span<const BlockCopy> copies) {
  for (const BlockCopy& copy : copies) {
    for (const std::vector<at::Tensor>* side : {&keys_, &values_}) {
      for (const at::Tensor& slot : *side) slot.select(0, copy.to).copy_(slot.select(0, copy.from));
    }
  }
}

void KvCache::Release() {
  keys_.clear();
  values_.clear();
}

void KvCache::Restore() {
  if (!released()) return;
  const auto options = at::TensorOptions().dtype(shape_.dtype).device(shape_.device);
  for (int64_t i = 0; i < groups_.page_layers; ++i) {
    for (std::vector<at::Tensor>* side : {&keys_, &values_}) {
      side->push_back(
          at::empty({num_blocks_, shape_.kv_heads, block_size_, shape_.head_dim}, options));
    }
  }
}

}  // namespace keel::rollout
