// Log-probability of each target and entropy of each distribution over a vocabulary that is split
// over the TP group, fused with the output projection and differentiable: what RL and DPO losses
// are functions of.
//
// As in VocabParallelLoss logits exist only for a chunk of tokens and this rank's part of the
// vocabulary. The loss's gradient is known only after the forward, so the backward makes the logits
// again chunk by chunk; those of a single chunk are kept instead.
#pragma once

#include <ATen/ATen.h>

#include "parallel/tensor/vocab_chunks.h"

namespace keel::parallel {

struct TokenLogProbs {
  at::Tensor log_probs;  // [T] fp32, 0 where the target is ignored
  at::Tensor
      entropy;  // [T] fp32, in nats, 0 where the target is ignored; undefined if not asked for
};

// The log-probabilities of softmax(logits / temperature), the division in fp32. hidden [T, hidden]
// or [T / n, hidden] with sequence parallelism; targets [T] int64. The same on every TP rank, and
// the log_probs have the same bits with and without entropy, with and without gradient. The
// gradients that come back must be the same on every TP rank too; the backward adds to the weight's
// gradient. `head` must outlive the graph. Collective over TP, in the backward again.
TokenLogProbs VocabParallelLogProbs(const VocabParallelHead& head, const at::Tensor& hidden,
                                    const at::Tensor& targets, double temperature = 1,
                                    bool with_entropy = false);

// The log-probability of each target under softmax(logits / temperature), for rows of logits [T,
// vocabulary] that are whole on this rank; [T] fp32. The bits are those of VocabParallelLogProbs
// over ranks that have `part` columns each. No gradient.
at::Tensor LogProbsOfWhole(const at::Tensor& logits, const at::Tensor& targets, double temperature,
                           int64_t part);

// The logarithm of the sum over the vocabulary of squared probabilities, log sum(p^2) for p =
// softmax(logits / temperature); [T] fp32, 0 where the target is ignored. The same on every TP
// rank. No gradient. Collective over TP.
at::Tensor VocabParallelLogSumSquares(const VocabParallelHead& head, const at::Tensor& hidden,
                                      const at::Tensor& targets, double temperature = 1);

}  // namespace keel::parallel
