// A training's micro-batch as generation has it: each of its sequences a prompt that begins, with
// room for the keys and values of one layer, which layers use one after another.
//
// What it attends has the bits of AttendInto's, and of AttendByKernels' with a fixed order.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <vector>

#include "model/ops/decode_plan.h"
#include "model/ops/kv_cache.h"
#include "model/ops/ops.h"

namespace keel::model {

class PackedPrompts : private KvStore {
 public:
  // `like`: of the dtype and on the device of queries, keys and values.
  PackedPrompts(const Packing& packing, const AttentionShape& shape, const at::TensorOptions& like);
  // sequences_ are views of blocks_.
  PackedPrompts(const PackedPrompts&) = delete;
  PackedPrompts& operator=(const PackedPrompts&) = delete;

  // qkv [T, (heads + 2 kv_heads) d], turned already. Returns [T, heads d]. No gradient.
  at::Tensor Attend(const at::Tensor& qkv, const ScoreOptions& options) const;
  // The same, differentiable: the gradient is PackedAttention's.
  at::Tensor AttendToLearn(const at::Tensor& qkv, const Packing& packing,
                           const ScoreOptions& options) const;

 private:
  int64_t block_size() const override;
  size_t group(int64_t) const override { return 0; }
  const at::Tensor& keys(int64_t) const override { return keys_; }
  const at::Tensor& values(int64_t) const override { return values_; }

  AttentionShape shape_;
  std::vector<std::vector<int32_t>> blocks_;  // of each sequence
  std::vector<DecodeSequence> sequences_;
  at::Tensor keys_, values_;
  std::optional<DecodePlan> plan_;  // where Keel's kernels for GPUs attend
};

}  // namespace keel::model
