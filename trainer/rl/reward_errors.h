// What becomes of responses whose verifier failed, and what is said about them. A failure says
// nothing about the response: it is never a score of 0 that nobody hears of. Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "trainer/rl/rollout_batch.h"

namespace keel::trainer::rl {

// reward.on_error. But for the last two, a batch of which no response has a score ends the run.
enum class OnRewardError {
  kZero,           // scores 0
  kExclude,        // takes no part
  kStop,           // ends the run, even if it is a single one
  kZeroAlways,     // as kZero, however many they are
  kExcludeAlways,  // as kExclude, however many they are
};
// The configuration's names, in the enum's order.
std::vector<std::string> OnRewardErrorNames();
// Of one of these names; throws Error(kConfig) for another.
OnRewardError OnRewardErrorOf(const std::string& name);

inline bool Excludes(OnRewardError policy) {
  return policy == OnRewardError::kExclude || policy == OnRewardError::kExcludeAlways;
}
inline bool GoesOnWithoutAnyScore(OnRewardError policy) {
  return policy == OnRewardError::kZeroAlways || policy == OnRewardError::kExcludeAlways;
}

// RewardErrors: counts a run's failures by kind, warns of them, and ends the run where it must not
// go on. Errors are of one kind when their texts differ in numbers alone. One a run; not
// thread-safe; not collective, but where the responses are the same on every rank so is the end.
class RewardErrors {
 public:
  using Warn = std::function<void(const std::string&)>;
  // `warn` may be empty: ranks that say nothing.
  RewardErrors(OnRewardError policy, Warn warn) : policy_(policy), warn_(std::move(warn)) {}

  // Of a batch ("step 7", "the validation after step 7"). Warns of the first failure of each kind,
  // and when a kind's count passes 10, 100, and so on; at most kMostKinds kinds are told apart.
  // Throws Error(kUnavailable) when the run must not go on; the message says why and what to do.
  void Judge(std::span<const Response> responses, const std::string& batch);

  OnRewardError policy() const { return policy_; }

  static constexpr size_t kMostKinds = 16;

 private:
  void Count(std::span<const Response> responses, const std::string& batch);
  Status Check(std::span<const Response> responses, const std::string& batch) const;

  const OnRewardError policy_;
  const Warn warn_;
  std::map<std::string, int64_t> kinds_;  // how often each occurred
};

// Responses without a score.
int64_t CountFailed(std::span<const Response> responses);

}  // namespace keel::trainer::rl
