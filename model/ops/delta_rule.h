// The gated delta rule (Yang et al. 2025, "Gated Delta Networks"), which mixes the tokens of a text
// by a state that each of them changes, and the short convolution before it: as differentiable
// functions for training, and for generation, whose sequences have states in a store.
//
// On CPU both run Keel's kernels for hosts (common/kernels/delta_rule.h), which compute a token
// alike however a text is cut, so that a rollout's values can be the trainer's bit for bit;
// elsewhere PyTorch's operations (delta_chunks.h). fp32 and bf16, states always fp32.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/ops/delta_shape.h"
#include "model/ops/kv_cache.h"
#include "model/ops/ops.h"
#include "parallel/parameter.h"

namespace keel::model {

// silu(sum over i of weight[c, i] x[t - taps + 1 + i, c]) within each text. x [T, channels];
// weight [channels, 1, taps]. The result is contiguous.
at::Tensor CausalConvolution(const at::Tensor& x, parallel::Parameter& weight,
                             const Packing& packing);

// Of each token: qkv [T, channels], and a and b [T, value_heads], of which come how much of the
// state it keeps, exp(-exp(a_log) softplus(a + dt_bias)), and how much it writes, sigmoid(b).
struct DeltaInputs {
  at::Tensor qkv, a, b;
};
struct DeltaParameters {
  parallel::Parameter* a_log = nullptr;    // [value_heads]
  parallel::Parameter* dt_bias = nullptr;  // the same
};
// [T, values]; see kernels::DeltaText for the rule.
at::Tensor GatedDeltaRule(const DeltaInputs& in, const DeltaParameters& parameters,
                          const DeltaShape& shape, const Packing& packing);

// The same for generation, of the tokens that follow those in the store: the states of a layer of
// it are read and written. Without gradients.
struct RecurrentLayer {
  const std::vector<DecodeSequence>& sequences;
  RecurrentStates states;
};
at::Tensor CausalConvolution(const at::Tensor& x, const parallel::Parameter& weight,
                             const RecurrentLayer& layer);
at::Tensor GatedDeltaRule(const DeltaInputs& in, const DeltaParameters& parameters,
                          const DeltaShape& shape, const RecurrentLayer& layer);

}  // namespace keel::model
