// CheckRequest: what is wrong with a request, whatever else there is to serve. Torch-free, pure,
// thread-safe.
#pragma once

#include <cstdint>

#include "common/status.h"
#include "rollout/sequence.h"

namespace keel::rollout {

// What an engine can serve.
struct RequestLimits {
  int64_t vocabulary = 0;      // ids below it are tokens
  int64_t max_model_len = 0;   // tokens that can be scored
  bool has_tokenizer = false;  // which stop strings need
  bool log_probs = true;       // of each token are kept
  int64_t weight_version = 0;  // no token was chosen by a later one
};

// kInvalidData with a sentence for whoever made the request; ok where nothing is wrong with its
// prompt, its sampling and its response so far. Whether there is room for its tokens says
// Engine::CheckLengths.
Status CheckRequest(const Request& request, const RequestLimits& limits);

}  // namespace keel::rollout
