// What verifiers outside of the process have in common: requests of a bounded size, each with a
// time limit, tried again for what they leave open. Torch-free.
#pragma once

#include <atomic>
#include <chrono>
#include <span>
#include <vector>

#include "common/status.h"
#include "rewards/reward.h"

namespace keel::rewards {

struct RequestOptions {
  size_t batch_size = 16;  // samples per request
  std::chrono::milliseconds timeout{10'000};
  int max_retries = 2;  // further tries of a request that failed
};

// A subclass sends one request. What it answers about single samples stands, whatever became of the
// request; samples it did not answer are tried again, and then have an error.
class RetryingVerifier : public Verifier {
 public:
  explicit RetryingVerifier(const RequestOptions& options) : options_(options) {}
  std::vector<RewardResult> Verify(std::span<const RewardSample> samples) final;
  void Cancel() final;

 protected:
  const RequestOptions& request_options() const { return options_; }

  // Gives results of these samples, in any order; some may be missing. An error is one of the
  // request, and results that are given beside it stand. Must return by `deadline`, and soon after
  // Interrupt.
  virtual Status Request(std::span<const RewardSample> samples,
                         std::chrono::steady_clock::time_point deadline,
                         std::vector<RewardResult>* results) = 0;
  // Before the second try of a request that nobody was there for, in what is left of the first's
  // time; twice as long before the next, and so on.
  virtual std::chrono::milliseconds pause() const { return std::chrono::milliseconds(0); }
  // Of any thread: ends a Start or Request under way, and every later one, with an error.
  virtual void Interrupt() = 0;

 private:
  void Wait(std::chrono::steady_clock::time_point until) const;

  RequestOptions options_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace keel::rewards
