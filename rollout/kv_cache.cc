#include "rollout/kv_cache.h"

#include <utility>

#include "parallel/groups/cuda_module.h"

namespace keel::rollout {

namespace {

// On pages of its own from the start: what goes into PyTorch's cache of a device for the first time
// would not be the driver's again, and in the way of the next cache.
void TakePages(parallel::TensorMemory& memory) {
  if (memory.tensor().is_cpu()) return;
  memory.Release();
  ValueOrThrow(parallel::LoadCudaModule())->ReleaseCached();
  memory.Restore();
}

}  // namespace

KvCache::KvCache(const model::KvShape& shape, KvGroups groups, int64_t num_blocks,
                 int64_t block_size, int64_t states)
    : shape_(shape),
      groups_(std::move(groups)),
      num_blocks_(num_blocks),
      block_size_(block_size),
      memory_(at::empty(
          {groups_.page_layers, 2, num_blocks_, shape_.kv_heads, block_size_, shape_.head_dim},
          at::TensorOptions().dtype(shape_.dtype).device(shape_.device))),
      states_(states),
      state_memory_(at::empty({shape_.recurrent_layers(), states_, shape_.recurrent.value_heads,
                               shape_.recurrent.key_dim, shape_.recurrent.value_dim},
                              at::TensorOptions().dtype(at::kFloat).device(shape_.device))),
      input_memory_(at::empty({shape_.recurrent_layers(), states_, shape_.recurrent.inputs(),
                               shape_.recurrent.channels()},
                              at::TensorOptions().dtype(shape_.dtype).device(shape_.device))) {
  for (parallel::TensorMemory* memory : {&memory_, &state_memory_, &input_memory_})
    TakePages(*memory);
  int64_t place = 0;
  for (const int64_t window : shape_.windows)
    recurrent_.push_back(window == model::kNoKeys ? place++ : -1);
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

model::RecurrentStates KvCache::recurrent(int64_t layer) const {
  const int64_t place = recurrent_[static_cast<size_t>(layer)];
  return {state_memory_.tensor().select(0, place), input_memory_.tensor().select(0, place)};
}

void KvCache::CopyStates(std::span<const BlockCopy> copies) {
  for (const BlockCopy& copy : copies) {
    for (const parallel::TensorMemory* memory : {&state_memory_, &input_memory_})
      memory->tensor().select(1, copy.to).copy_(memory->tensor().select(1, copy.from));
  }
}

void KvCache::Release() {
  for (parallel::TensorMemory* memory : {&memory_, &state_memory_, &input_memory_})
    memory->Release();
}

void KvCache::Restore() {
  for (parallel::TensorMemory* memory : {&memory_, &state_memory_, &input_memory_})
    memory->Restore();
}

}  // namespace keel::rollout
