// What the functions of a vocabulary-parallel head share: a rank's part of the vocabulary, and a
// walk over chunks of tokens whose logits never take more than the head's chunk_bytes.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>

#include "parallel/parameter.h"
#include "parallel/tensor/host_tensor.h"
#include "parallel/tensor/matrix_product.h"
#include "parallel/tensor/tensor_parallel_layers.h"

namespace keel::parallel {

inline constexpr int64_t kIgnoreTarget = -100;

struct VocabParallelHead {
  TensorParallel tp;
  Parameter* weight = nullptr;  // [VocabRowsPerRank, hidden]
  Parameter* bias = nullptr;    // [VocabRowsPerRank], added to products; may be null
  int64_t vocab_size = 0;       // rows past it are padding and take no part
  int64_t chunk_bytes = 0;      // bound on the logits held at a time; 0: by the device
  double divisor = 1;           // logits are what that gives over this,
  double softcap = 0;           // and then softcap * tanh(logit / softcap); 0: not
};

// logits [C, rows] = hidden [C, hidden] times the weight, and the bias, by the head's forward.
void MultiplyByHead(const VocabParallelHead& head, const at::Tensor& hidden, at::Tensor& logits);
// In place, what a head's divisor and softcap make of products with its weight.
void FinishLogits(const VocabParallelHead& head, at::Tensor& products);
// The derivative of a softcap at finished logits; undefined without one.
at::Tensor CapSlope(const VocabParallelHead& head, const at::Tensor& logits);
// In place, the gradient by the products from that by finished logits; `slope` is CapSlope's.
void ToProductGradient(const VocabParallelHead& head, const at::Tensor& slope,
                       at::Tensor& gradient);

// Adds what the weight, and the bias, learn of `gradient` [C, rows] by products of `hidden` [C,
// hidden] with the weight.
void AddHeadGradient(const VocabParallelHead& head, const at::Tensor& gradient,
                     const at::Tensor& hidden);

struct VocabPart {
  int64_t first = 0;    // first vocabulary id of this rank
  int64_t columns = 0;  // valid ones
};
VocabPart LocalPart(const VocabParallelHead& head);

// The bound on logits where a head names none: so that they stay in a host's cache, and so that a
// GPU reads the head's gradient, which each chunk adds to, a few times a micro-batch and not
// sixteen.
int64_t DefaultChunkBytes(const at::Device& device);

// Tokens of a chunk, for `tokens` in all: even chunks, so that 2048 tokens with room for 1400
// become two of 1024.
int64_t ChunkRows(const VocabParallelHead& head, const at::Tensor& hidden);

// Every rank's tokens in front of the head; the gradient is summed over TP. Collective over TP.
at::Tensor EnterHead(const VocabParallelHead& head, const at::Tensor& hidden);

// Statistics [C, n] of every TP rank as [ranks, C, n], in rank order. Collective over TP.
at::Tensor GatherStatistics(const at::Tensor& statistics, ProcessGroup& group);

// Calls body(begin, count, logits [count, rows], local_targets [count]) for each chunk; the body
// may overwrite the logits. `buffer` [>= ChunkRows, rows] holds them.
template <typename Body>
void ForEachChunk(const VocabParallelHead& head, const at::Tensor& hidden,
                  const at::Tensor& targets, at::Tensor& buffer, Body&& body) {
  const int64_t rows = ChunkRows(head, hidden);
  const at::Tensor local_targets = targets - LocalPart(head).first;
  for (int64_t begin = 0; begin < hidden.size(0); begin += rows) {
    const int64_t count = std::min(rows, hidden.size(0) - begin);
    at::Tensor logits = buffer.narrow(0, 0, count);
    MultiplyByHead(head, hidden.narrow(0, begin, count), logits);
    FinishLogits(head, logits);
    body(begin, count, logits, local_targets.narrow(0, begin, count));
  }
}

at::Tensor ChunkBuffer(const VocabParallelHead& head, const at::Tensor& hidden);

constexpr int64_t kRowGrain = 16;  // rows of logits per CPU task

// Calls f(pointer) with float or bf16 bits.
template <typename F>
void WithHostPointer(const at::Tensor& tensor, F&& f) {
  WithHostType(tensor, [&](auto zero) { f(HostData<decltype(zero)>(tensor)); });
}

}  // namespace keel::parallel
