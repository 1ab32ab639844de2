// LogProbsMode: what the log-probability that is kept of a chosen token means, and the names of
// actor_rollout_ref.rollout.logprobs_mode. Torch-free.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace keel::rollout {

enum class LogProbsMode {
  // Under softmax(logits / temperature), without penalty and filters: what the trainer computes,
  // whatever the token was drawn from. At temperature 0: under softmax(logits).
  kPolicy,
  // Under softmax(logits): the trainer's at temperature 1.
  kRaw,
  // Under the distribution it was drawn from: after penalty, temperature and filters, renormalised.
  // At temperature 0: after the penalty alone.
  kProcessed,
};

// In the enum's order; the last two are vLLM's.
inline std::vector<std::string> LogProbsModeNames() {
  return {"policy_logprobs", "raw_logprobs", "processed_logprobs"};
}

// The mode of one of these names, which the schema has checked; kPolicy for another.
inline LogProbsMode LogProbsModeOf(const std::string& name) {
  const std::vector<std::string> names = LogProbsModeNames();
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return static_cast<LogProbsMode>(i);
  }
  return LogProbsMode::kPolicy;
}

}  // namespace keel::rollout
