// RewardPool: verifiers on threads of their own, beside generation.
//
// Submit hands a finished response over at once; Collect waits for what was submitted. Both belong
// to one thread, the trainer's; the workers touch nothing but their verifier and the queue.
// Destroying the pool drops what is queued and cancels requests under way. Torch-free.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "rewards/reward.h"

namespace keel::rewards {

struct RewardPoolStats {
  int64_t verified = 0;  // samples with a score
  int64_t errors = 0;    // samples without
  double busy_s = 0;     // of all workers
  double waited_s = 0;   // in Collect
};

// What a verifier throws that is no longer the one that the run began with: scores of both would
// be compared with each other.
class VerifierChanged final : public Error {
 public:
  using Error::Error;
};

class RewardPool {
 public:
  // Called once per worker, on the caller's thread.
  using Factory = std::function<std::unique_ptr<Verifier>()>;
  // Throws Error(kExhausted) when there are not so many threads.
  RewardPool(int workers, size_t batch_size, const Factory& make_verifier);
  ~RewardPool();
  RewardPool(const RewardPool&) = delete;
  RewardPool& operator=(const RewardPool&) = delete;

  // Starts every verifier, before the first Submit: the first error of theirs.
  Status Start();

  // The pool numbers samples itself; the caller's id comes back with the result. `limit`, of Poll:
  // how long the sample may be without a result from now on, in which those before it have theirs
  // (CollectLimit of all that are open, with this one); none: for ever.
  void Submit(RewardSample sample, std::optional<std::chrono::milliseconds> limit = {});
  // Results of everything submitted since the last Collect, in that order. A sample that has none
  // `deadline` from now gets an error; what its verifier says later is dropped.
  // `meanwhile`, if given, is called every second of the wait. Throws what a verifier has thrown
  // that has changed, as Poll does.
  std::vector<RewardResult> Collect(std::chrono::milliseconds deadline,
                                    const std::function<void()>& meanwhile = {});

  // Results that are there by now, in any order, each once; in place of Collect. A sample that has
  // passed its limit gets an error.
  std::vector<RewardResult> Poll();

  RewardPoolStats stats() const;

 private:
  struct Ticket {
    int64_t caller_id = 0;
    bool done = false;
    std::chrono::steady_clock::time_point submitted;
    std::optional<std::chrono::milliseconds> limit;
    RewardResult result = {};
  };
  void Work(Verifier& verifier);
  void StopThreads();

  const size_t batch_size_;
  mutable std::mutex mutex_;
  std::condition_variable work_, done_;
  std::deque<RewardSample> queue_;     // ids are ticket numbers
  std::map<int64_t, Ticket> tickets_;  // of the current round, by number
  int64_t next_ticket_ = 0;
  size_t open_ = 0;                     // tickets without a result
  std::set<const Verifier*> to_start_;  // by their threads
  Status start_;                        // the first error of these
  Status changed_;                      // of a verifier that has changed
  bool stopping_ = false;
  RewardPoolStats stats_;
  std::vector<std::unique_ptr<Verifier>> verifiers_;
  std::vector<std::thread> threads_;
};

}  // namespace keel::rewards
