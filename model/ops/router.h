// The router of a feed-forward of experts: which of them a token goes through, and what each
// counts.
#pragma once

#include <ATen/ATen.h>

#include "model/config/moe_spec.h"

namespace keel::model {

struct Routing {
  at::Tensor experts;  // [T, top_k] int64, the likeliest first
  at::Tensor weights;  // [T, top_k] fp32
  at::Tensor probs;    // [T, experts] fp32, of all experts
};

// logits [T, experts] in the model's dtype; the softmax is in fp32, whatever that is.
// Differentiable by the logits, for training; a row depends on itself alone, bit for bit, as
// generation wants it.
Routing Route(const at::Tensor& logits, const MoeSpec& spec);

// The sigmoid of x [T, 1], in x's dtype; differentiable. Unlike ATen's, whose last elements of an
// array may have other bits than the same ones in its middle, a row depends on itself alone.
at::Tensor RowSigmoid(const at::Tensor& x);

}  // namespace keel::model
