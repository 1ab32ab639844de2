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

#include "parallel/parameter.h"
#include "parallel/tensor_parallel_layers.h"

namespace keel::parallel {

inline constexpr int64_t kIgnoreTarget = -100;

struct VocabParallelHead {
  TensorParallel tp;
  Parameter* weight = nullptr;              // [VocabRowsPerRank, hidden]
  int64_t vocab_size = 0;                   // rows past it are padding and take no part
  int64_t chunk_bytes = int64_t{64} << 20;  // bound on the logits held at a time
};

// scale * sum over tokens of -log p(target); tokens with kIgnoreTarget count nothing. A scalar,
// fp32, the same on every TP rank. hidden [T, hidden] or [T / n, hidden] with sequence parallelism;
// targets [T] int64. Under grad mode the forward already adds to the weight's gradient, so the
// gradient given to the result must be 1. Collective over TP.
at::Tensor VocabParallelLoss(const VocabParallelHead& head, const at::Tensor& hidden,
                             const at::Tensor& targets, double scale);

// log p(target) per token, [T] fp32, 0 where the target is ignored. No gradient. Collective over
// TP.
at::Tensor VocabParallelLogProbs(const VocabParallelHead& head, const at::Tensor& hidden,
                                 const at::Tensor& targets);

// Full logits [T, vocab_size] on every TP rank, for scoring and sampling. No gradient. Collective.
at::Tensor GatheredLogits(const VocabParallelHead& head, const at::Tensor& hidden);

}  // namespace keel::parallel
