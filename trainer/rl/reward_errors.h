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
#include "rewards/reward_options.h"
#include "trainer/data/rollout_batch.h"

namespace keel::trainer::rl {

// RewardErrors: counts a run's failures by kind, warns of them, and ends the run where it must not
// go on. Errors are of one kind when their texts differ in numbers alone. One a run; not
// thread-safe; not collective, but where the responses are the same on every rank so is the end.
class RewardErrors {
 public:
  using Warn = std::function<void(const std::string&)>;
  // `warn` may be empty: ranks that say nothing.
  RewardErrors(rewards::OnRewardError policy, Warn warn)
      : policy_(policy), warn_(std::move(warn)) {}

  // Of a batch ("step 7", "the validation after step 7"). Warns of the first failure of each kind,
  // and when a kind's count passes 10, 100, and so on; at most kMostKinds kinds are told apart.
  // Throws Error(kUnavailable) when the run must not go on; the message says why and what to do.
  void Judge(std::span<const Response> responses, const std::string& batch);

  rewards::OnRewardError policy() const { return policy_; }

  static constexpr size_t kMostKinds = 16;

 private:
  void Count(std::span<const Response> responses, const std::string& batch);
  Status Check(std::span<const Response> responses, const std::string& batch) const;

  const rewards::OnRewardError policy_;
  const Warn warn_;
  std::map<std::string, int64_t> kinds_;  // how often each occurred
};

// Responses without a score.
int64_t CountFailed(std::span<const Response> responses);

}  // namespace keel::trainer::rl
