// The gated delta rule and its convolution by PyTorch's operations, for devices without kernels of
// Keel's: differentiable by PyTorch itself. See delta_rule.h.
//
// Neighbouring tokens are computed together in chunks (Yang et al. 2024, "Parallelizing linear
// transformers with the delta rule over sequence length"), so that a token's bits depend on how a
// text is cut.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "model/ops/delta_rule.h"

namespace keel::model {

// x [T, channels], of texts within which the tokens stand at `positions` [T]; nothing is in front
// of them. weight [channels, 1, taps].
at::Tensor ConvolvedByPositions(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& positions);
// x [n, taps - 1 + L, channels] -> [n, L, channels].
at::Tensor ConvolvedBehind(const at::Tensor& x, const at::Tensor& weight);

// log_decay and beta [T, value_heads] fp32.
struct DeltaGates {
  at::Tensor log_decay, beta;
};
DeltaGates GatesOf(const DeltaInputs& in, const at::Tensor& a_log, const at::Tensor& dt_bias);

// Tokens of texts beside each other, [n, L, ..]: qkv [n, L, channels], gates [n, L, value_heads];
// state [n, value_heads, key_dim, value_dim] fp32 before the first token. out [n, L, values] in
// qkv's dtype.
struct Recurred {
  at::Tensor out, state;
};
Recurred Recur(const at::Tensor& qkv, const DeltaGates& gates, const DeltaShape& shape,
               const at::Tensor& state);

}  // namespace keel::model
