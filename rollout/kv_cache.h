// KvCache: the memory behind the block manager's blocks, on the model's device. A block is as many
// layers wide as a group has at most (kv_groups.h), and holds one group's. Beside them the states
// of sequences in layers that have such, a slot each.
//
// Can be released while nothing is generated, so that training has its memory, and restored, to the
// same place from its first time on; the contents are lost. One thread.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "model/ops/kv_cache.h"
#include "parallel/groups/tensor_memory.h"
#include "rollout/block_manager.h"
#include "rollout/kv_groups.h"

namespace keel::rollout {

class KvCache : public model::KvStore {
 public:
  // `groups` of the shape's layers; `states`: slots for sequences, where layers have states.
  KvCache(const model::KvShape& shape, KvGroups groups, int64_t num_blocks, int64_t block_size,
          int64_t states = 0);
  // Of one block.
  static int64_t BlockBytes(const model::KvShape& shape, const KvGroups& groups,
                            int64_t block_size) {
    return shape.bytes_per_key() * groups.page_layers * block_size;
  }

  int64_t block_size() const override { return block_size_; }
  size_t group(int64_t layer) const override {
    return static_cast<size_t>(groups_.of_layer[static_cast<size_t>(layer)].group);
  }
  const at::Tensor& keys(int64_t layer) const override { return keys_[SlotOf(layer)]; }
  const at::Tensor& values(int64_t layer) const override { return values_[SlotOf(layer)]; }

  model::RecurrentStates recurrent(int64_t layer) const override;

  // In order.
  void Copy(std::span<const BlockCopy> copies);
  // Of slots.
  void CopyStates(std::span<const BlockCopy> copies);
  void Release();
  void Restore();
  bool released() const { return !memory_.there(); }
  int64_t bytes() const {
    return num_blocks_ * BlockBytes(shape_, groups_, block_size_) +
           states_ * shape_.bytes_per_sequence();
  }

 private:
  size_t SlotOf(int64_t layer) const {
    return static_cast<size_t>(groups_.of_layer[static_cast<size_t>(layer)].slot);
  }

  model::KvShape shape_;
  KvGroups groups_;
  int64_t num_blocks_;
  int64_t block_size_;
  parallel::TensorMemory memory_;  // of all slots
  std::vector<at::Tensor> keys_;   // by slot [blocks, kv_heads, block_size, head_dim]
  std::vector<at::Tensor> values_;
  int64_t states_;
  std::vector<int64_t> recurrent_;       // of each layer its place among those with states, or -1
  parallel::TensorMemory state_memory_;  // [layers, slots, value_heads, key_dim, value_dim]
  parallel::TensorMemory input_memory_;  // [layers, slots, inputs, channels]
};

}  // namespace keel::rollout
