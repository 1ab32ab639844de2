// softmax(logits / temperature) over a rank's part of the vocabulary: what comes before the ranks'
// statistics are joined, and what comes after.
#pragma once

#include <cstdint>

#include "gpu/element.h"

namespace keel::gpu {

// Of each row's first `columns` logits: the maximum, the sum of exp(y) for y = (x - maximum) /
// temperature, x[target] or 0 where the target is none of them, and with `entropy` the sum of
// exp(y) y. One reading of the logits (Milakov & Gimelshein 2018). Without columns: -inf, 0, 0, 0.
struct TokenStatistics {
  Element element = Element::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;  // from a row to the next
  const void* logits = nullptr;
  const int64_t* targets = nullptr;  // [rows]
  float temperature = 1;
  bool entropy = false;
  float* statistics = nullptr;  // [rows, entropy ? 4 : 3]
};

// In place: the gradient by the logits of log_prob_gradient * log p(target) + entropy_gradient *
// entropy, for p = softmax over all ranks; columns from `columns` to `stride` become 0.
struct TokenGradient {
  Element element = Element::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;
  void* logits = nullptr;
  const int64_t* targets = nullptr;
  float temperature = 1;
  const float* maximum = nullptr;  // [rows] each, over all ranks
  const float* log_sum = nullptr;  // of exp(y)
  const float* log_prob_gradient = nullptr;
  const float* entropy = nullptr;           // with entropy_gradient
  const float* entropy_gradient = nullptr;  // null: 0
};

}  // namespace keel::gpu
