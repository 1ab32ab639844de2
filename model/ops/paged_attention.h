// Attention of generation by Keel's kernels for GPUs, for a whole batch at once.
#pragma once

#include <ATen/ATen.h>

#include "model/ops/decode_ops.h"
#include "model/ops/decode_plan.h"
#include "model/ops/rotation.h"
#include "parallel/tensor/device_kernels.h"

namespace keel::model {

// How AttendByKernels goes about a batch.
struct PagedWay {
  const DecodePlan& plan;
  const Rotation* rotation = nullptr;  // null: queries and keys are not turned
  // Prompts, too, go by Keel's kernel, so that no token's result depends on what is beside it.
  bool fixed_order = false;
};

// Turns qkv [T, (heads + 2 kv_heads) d] in place, writes its keys and values to the layer's blocks,
// and attends as AttendInto: on a GPU in bf16 prompts that begin here, without softcap or window,
// by PyTorch's FlashAttention, all at once; all other tokens by one kernel. out [T, heads d].
void AttendByKernels(const parallel::DeviceKernels& kernels, at::Tensor& qkv,
                     const AttentionShape& shape, const PagedWay& way, const CachedLayer& cache,
                     const ScoreOptions& options, at::Tensor& out);

}  // namespace keel::model
