// The router of a feed-forward of experts: which of them a token goes through, and what each
// counts.
#pragma once

#include <ATen/ATen.h>

#include "model/config/moe_spec.h"

namespace keel::model {

struct Routing {
  at::Tensor experts;  // [T, top_k] int64, the best first
  at::Tensor weights;  // [T, top_k] fp32
  // [T, experts] fp32: the softmax over all experts, by which transformers balances them whatever
  // they are chosen by.
  at::Tensor probs;
  bool biased = false;  // the experts are not simply those of the highest probs
};

// logits [T, experts] in the model's dtype or fp32; scores are in fp32, whatever that is. `bias`
// [experts] fp32, with spec.choice_bias. Differentiable by the logits, for training; a row depends
// on itself alone, bit for bit, as generation wants it.
Routing Route(const at::Tensor& logits, const at::Tensor& bias, const MoeSpec& spec);

// The sigmoid of x [T, n], in x's dtype; differentiable. Unlike ATen's, whose last elements of an
// array may have other bits than the same ones in its middle, a row depends on itself alone.
at::Tensor RowSigmoid(const at::Tensor& x);

}  // namespace keel::model
