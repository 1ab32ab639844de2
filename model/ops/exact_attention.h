// Attention with a window shorter than the sequence, or with a softcap on its scores, which the
// fused kernels do not compute: by blocks of queries, each over the keys that its window reaches,
// in fp32. Memory is that of one block's scores, in the backward too, which makes them again.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "model/ops/attention_runs.h"
#include "model/ops/ops.h"

namespace keel::model {

// Whether sequences of `length` tokens need this.
inline bool NeedsExact(const ScoreOptions& options, int64_t length) {
  return options.softcap > 0 || (options.window > 0 && options.window < length);
}

// q [n, heads, L, d] at positions past, past + 1, ...; k and v [n, kv_heads, past + L, d]. The
// result is q's shape, in fp32. No gradient.
at::Tensor ExactAttend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t past,
                       const ScoreOptions& options, const AttentionShape& shape);

// PackedAttention, differentiable.
at::Tensor ExactPackedAttention(const at::Tensor& qkv, const AttentionShape& shape,
                                const std::vector<AttentionRun>& runs, const ScoreOptions& options);

}  // namespace keel::model
