// What tests of a rollout's weights ask it for: texts that other weights would not write.
#pragma once

#include <cstdint>
#include <vector>

#include "rollout/engine.h"

namespace keel::trainer {

// Three greedy requests in the vocabulary of TinyConfig.
inline std::vector<rollout::Request> Prompts() {
  std::vector<rollout::Request> requests;
  for (uint64_t i = 0; i < 3; ++i) {
    rollout::Request request;
    request.prompt_id = i;
    for (int32_t t = 0; t < 5 + static_cast<int32_t>(i); ++t)
      request.prompt.push_back((t * 7 + static_cast<int32_t>(i) * 11) % 131);
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 6;
    requests.push_back(request);
  }
  return requests;
}

}  // namespace keel::trainer
