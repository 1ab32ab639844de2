// Runs of a packed micro-batch: neighbouring sequences of one length are one batch of attention.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/ops/ops.h"

namespace keel::model {

// Whether PyTorch's build of FlashAttention takes it (Dao 2023), which is there on GPUs alone.
bool IsForFlash(const at::Tensor& qkv, const AttentionShape& shape);

struct AttentionRun {
  int64_t begin = 0;   // token
  int64_t count = 0;   // sequences
  int64_t length = 0;  // tokens each
};

std::vector<AttentionRun> EqualRuns(const std::vector<int64_t>& boundaries);

// Heads [first, first + heads) of a run of x [T, width], as [count, heads, length, head_dim]; a
// view.
at::Tensor HeadsOf(const at::Tensor& x, const AttentionRun& run, int64_t first, int64_t heads,
                   int64_t d);

}  // namespace keel::model
