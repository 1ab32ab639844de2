// The choice of tokens from their logits, as rollout::Sampler makes it on a host.
#pragma once

#include <cstdint>

#include "gpu/element.h"

namespace keel::gpu {

// What one token is chosen by: see rollout::SamplingParams, whose filters apply in this order.
struct RowChoice {
  double uniform = 0;     // the draw, in [0, 1)
  double top_p = 1;       // 1: all
  double min_p = 0;       // 0: all
  int32_t row = 0;        // of the logits
  int32_t top_k = 0;      // 0: all
  float temperature = 1;  // 0: the likeliest, the lowest id among equals
  // Of the distribution that a chosen token's log-probability is of.
  float policy_temperature = 1;
};

// What a choice leaves, log-probabilities in two parts: (logit - maximum) / temperature, and the
// sum of which the logarithm is yet to be subtracted. The first two are of softmax(logits /
// policy_temperature) over all columns, of the bits of TokenStatistics.
enum ChoicePart : int { kPolicyDistance, kPolicySum, kDrawnDistance, kDrawnSum, kChoiceParts };

struct TokenChoice {
  Element element = Element::kF32;
  int64_t count = 0;       // of choices
  int64_t columns = 0;     // of the logits
  int64_t vocabulary = 0;  // ids from here on are never chosen; at most `columns`
  int64_t stride = 0;      // from a row to the next
  const void* logits = nullptr;
  const RowChoice* choices = nullptr;  // [count]
  int32_t* tokens = nullptr;           // [count]; -1: the logits make no distribution
  float* parts = nullptr;              // [count, kChoiceParts]
};

}  // namespace keel::gpu
