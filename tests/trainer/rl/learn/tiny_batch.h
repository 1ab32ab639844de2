// Responses few and short enough to learn from in a test, in the vocabulary of TinyConfig.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "trainer/data/rollout_batch.h"

namespace keel::trainer::rl {

// Two samples of each of `prompts` prompts, of several lengths.
inline RolloutBatch TinyBatch(int64_t prompts) {
  std::vector<Response> responses;
  for (int64_t p = 0; p < prompts; ++p) {
    for (int sample = 0; sample < 2; ++sample) {
      Response r;
      r.position = p;
      r.sample = sample;
      for (int64_t t = 0; t < 3 + p % 2; ++t)
        r.prompt.push_back(static_cast<int32_t>((p * 17 + t * 5) % 131));
      for (int64_t t = 0; t < 2 + (p + sample) % 3; ++t)
        r.tokens.push_back(static_cast<int32_t>((p * 11 + sample * 29 + t * 7) % 131));
      responses.push_back(r);
    }
  }
  return RolloutBatch::Make(std::move(responses));
}

}  // namespace keel::trainer::rl
