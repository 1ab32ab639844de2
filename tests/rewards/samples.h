// What the tests of verifiers ask, and how long they wait for it.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "rewards/retrying_verifier.h"

namespace keel::rewards {

inline std::vector<RewardSample> Samples(int64_t n) {
  std::vector<RewardSample> samples;
  for (int64_t i = 0; i < n; ++i) {
    samples.push_back({});
    samples.back().id = 100 + i;
    samples.back().response = "r" + std::to_string(i) + "\xFF\n\"";
    samples.back().ground_truth = i;
  }
  return samples;
}

inline std::string Python() {
  const char* python = std::getenv("KEEL_PYTHON");
  return python != nullptr && access(python, X_OK) == 0 ? python : "python3";
}

inline RequestOptions Quick(int retries = 0, int timeout_ms = 20'000) {
  return {4, std::chrono::milliseconds(timeout_ms), retries};
}

}  // namespace keel::rewards
