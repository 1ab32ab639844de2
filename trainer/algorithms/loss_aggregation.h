// How token losses become one number, with denominators of the whole mini-batch.
//
// A micro-batch's share of each mode is sum over its tokens of weight * loss; only the weights
// differ. They come from global counts, so the shares of any split over micro-batches, ranks and
// packings add up to the same loss and gradient.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "trainer/algorithms/choices.h"
#include "trainer/algorithms/packed.h"

namespace keel::trainer::rl {

// A micro-batch's tokens: [T] tensors over several packed sequences, prompts included, with the
// mask of those that count.
struct TokenLayout {
  at::Tensor mask;                  // [T] bool
  std::vector<int64_t> boundaries;  // [S + 1] from 0 to T

  // `tokens` with 0 where the mask is not set, whatever stood there; no gradient comes from there.
  at::Tensor Counted(const at::Tensor& tokens) const;
  // Sums of what counts within each sequence, [S]; deterministic and differentiable.
  at::Tensor SequenceSums(const at::Tensor& tokens) const;
  // The largest of what counts within each sequence, [S], at least 0.
  at::Tensor SequenceMaxima(const at::Tensor& tokens) const;
  // [S] -> [T]
  at::Tensor Spread(const at::Tensor& sequences) const;
  at::Tensor Lengths() const;  // [S] fp32: tokens that count
};

// [T] fp32 weights, 0 where the mask is not set.
at::Tensor LossWeights(const TokenLayout& layout, LossAggregation mode,
                       const LossDenominators& denominators);

// sum of weight * loss as an fp32 scalar, summed in fp64.
at::Tensor WeightedSum(const at::Tensor& loss, const at::Tensor& weights);

}  // namespace keel::trainer::rl
