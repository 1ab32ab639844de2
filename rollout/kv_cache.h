// KvCache: the memory behind the block manager's blocks, on the model's device.
//
// Can be released while nothing is generated, so that training has its memory, and restored; the
// contents are lost. One thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <vector>

#include "model/kv_cache.h"
#include "rollout/block_manager.h"

namespace keel::rollout {

class KvCache : public model::KvStore {
 public:
  KvCache(const model::KvShape& shape, int64_t num_blocks, int64_t block_size);

  int64_t block_size() const override { return block_size_; }
  const at::Tensor& keys(int64_t layer) const override {
    return keys_.at(static_cast<size_t>(layer));
  }
  const at::Tensor& values(int64_t layer) const override {
    return values_.at(static_cast<size_t>(layer));
  }

  // In order.
  void Copy(std::span<const BlockCopy> copies);
  void Release();
  void Restore();
  bool released() const { return keys_.empty(); }
  int64_t bytes() const { return num_blocks_ * block_size_ * shape_.bytes_per_token(); }

 private:
  model::KvShape shape_;
  int64_t num_blocks_;
  int64_t block_size_;
  std::vector<at::Tensor> keys_;  // per layer [blocks, kv_heads, block_size, head_dim]
  std::vector<at::Tensor> values_;
};

}  // namespace keel::rollout
