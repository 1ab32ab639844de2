// The norm of all query heads together, and of all key heads, over heads that are dealt out over
// the TP ranks (OLMo 2): ranks exchange a sum of squares for each token.
#pragma once

#include <ATen/ATen.h>

#include "model/ops/ops.h"
#include "parallel/groups/process_group.h"
#include "parallel/parameter.h"

namespace keel::model {

struct FullWidth {
  parallel::ProcessGroup* group = nullptr;
  int64_t q = 0;  // dims of all ranks' heads together
  int64_t k = 0;
  // Of the ranks that hold the same key heads, one counts them.
  bool counts_k = true;
  NormOptions norm;
};

// qkv [T, (heads + 2 kv_heads) d], weights [heads d] and [kv_heads d] of this rank. With
// `fixed_order` see SumOverRanks. Collective over the group, in the backward again.
at::Tensor NormalizeFullWidth(const at::Tensor& qkv, const AttentionShape& shape,
                              parallel::Parameter& q_norm, parallel::Parameter& k_norm,
                              const FullWidth& width, bool fixed_order);
// For generation: in place, without gradients.
void NormalizeFullWidthInPlace(at::Tensor& qkv, const AttentionShape& shape,
                               const at::Tensor& q_weight, const at::Tensor& k_weight,
                               const FullWidth& width, bool fixed_order);

}  // namespace keel::model
