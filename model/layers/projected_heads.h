// What the projections of attention give.
#pragma once

#include <ATen/ATen.h>

namespace keel::model {

// Queries, keys and values [T, (heads + 2 kv_heads) head_dim], and gates [T, heads head_dim], of
// each query head those of its result; undefined where there are none.
struct ProjectedHeads {
  at::Tensor heads, gates;
};

}  // namespace keel::model
