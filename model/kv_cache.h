// KvCache: keys and values of the tokens decoded so far, for generation.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace keel::model {

// One sequence a batch row, all of the same length so far. Owned by the generating loop; one
// thread.
class KvCache {
 public:
  KvCache(int64_t layers, int64_t batch, int64_t capacity, int64_t kv_heads, int64_t head_dim,
          const at::TensorOptions& options) {
    for (int64_t i = 0; i < layers; ++i) {
      keys_.push_back(at::empty({batch, kv_heads, capacity, head_dim}, options));
      values_.push_back(at::empty({batch, kv_heads, capacity, head_dim}, options));
    }
  }

  int64_t length() const { return length_; }
  int64_t capacity() const { return keys_.empty() ? 0 : keys_[0].size(2); }
  // Stores k and v [batch, kv_heads, t, head_dim] of a layer behind the current length, and returns
  // all keys and values so far as views. Advance() once all layers have appended.
  std::pair<at::Tensor, at::Tensor> Append(int64_t layer, const at::Tensor& k,
                                           const at::Tensor& v) {
    TORCH_CHECK(length_ + k.size(2) <= capacity(), "KV cache of ", capacity(), " tokens is full");
    const auto i = static_cast<size_t>(layer);
    keys_[i].narrow(2, length_, k.size(2)).copy_(k);
    values_[i].narrow(2, length_, v.size(2)).copy_(v);
    const int64_t end = length_ + k.size(2);
    return {keys_[i].narrow(2, 0, end), values_[i].narrow(2, 0, end)};
  }
  void Advance(int64_t tokens) { length_ += tokens; }

 private:
  std::vector<at::Tensor> keys_;  // per layer [batch, kv_heads, capacity, head_dim]
  std::vector<at::Tensor> values_;
  int64_t length_ = 0;
};

}  // namespace keel::model
