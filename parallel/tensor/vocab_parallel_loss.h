// Cross-entropy over a vocabulary that is split over the TP group, fused with the output
// projection.
//
// Logits exist only for a chunk of tokens and this rank's part of the vocabulary; the full logits
// of the vocabulary are on no rank. Statistics per token are exchanged once a chunk (maximum, sum
// of exponentials, logit of the target), as in Megatron-LM's vocab_parallel_cross_entropy; the
// gradient is made in the same pass (as Liger's fused linear cross-entropy does).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "parallel/tensor/vocab_chunks.h"

namespace keel::parallel {

// scale * sum over tokens of -log p(target); tokens with kIgnoreTarget count nothing. A scalar,
// fp32, the same on every TP rank. hidden [T, hidden] or [T / n, hidden] with sequence parallelism;
// targets [T] int64. Under grad mode the forward already adds to the weight's gradient, so the
// gradient given to the result must be 1. Collective over TP.
at::Tensor VocabParallelLoss(const VocabParallelHead& head, const at::Tensor& hidden,
                             const at::Tensor& targets, double scale);

// Full logits [T, vocab_size] on every TP rank, for scoring and sampling. No gradient. Collective.
at::Tensor GatheredLogits(const VocabParallelHead& head, const at::Tensor& hidden);

}  // namespace keel::parallel
