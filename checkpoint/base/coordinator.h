// Coordinator: the side channel over which the ranks of a save or load agree.
//
// A small key-value store with deadlines; never a training collective. Implementations: one process
// with any number of threads (LocalCoordinatorHub, for tests and single runs) and the job's TCP
// store (trainer/run/store_coordinator.h). Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace keel::checkpoint {

class Coordinator {
 public:
  virtual ~Coordinator() = default;
  virtual int rank() const = 0;
  virtual int world() const = 0;
  // By which its waits go.
  virtual const Clock& clock() const { return SystemClock(); }
  virtual Status Put(std::string_view key, std::string_view value) = 0;
  // Waits until `key` exists. kDeadlineExceeded names the key and the time waited.
  virtual Result<std::string> Get(std::string_view key, std::chrono::milliseconds deadline) = 0;
  virtual Status Delete(std::string_view key) = 0;

  // Many keys in one trip, where the store can. Rank 0 of thousands of ranks has nine for each.
  //
  // What is there of each key once all of them are, or at `patience`; nothing at all, and at once,
  // where one trip cannot ask for several.
  virtual Result<std::vector<std::optional<std::string>>> Look(
      const std::vector<std::string>& /*keys*/, std::chrono::milliseconds /*patience*/) {
    return std::vector<std::optional<std::string>>();
  }
  virtual Status PutAll(const std::vector<std::string>& keys,
                        const std::vector<std::string>& values);
  virtual Status DeleteAll(const std::vector<std::string>& keys);
};

// Another coordinator whose waits can be cut short from outside, when peers may be gone.
class HurriedCoordinator final : public Coordinator {
 public:
  HurriedCoordinator(Coordinator& inner, const Clock& clock) : inner_(inner), clock_(clock) {}
  // From this reading of the monotonic clock on no wait goes on. Any thread.
  void HurryUntil(std::chrono::nanoseconds time) { until_.store(time.count()); }

  int rank() const override { return inner_.rank(); }
  int world() const override { return inner_.world(); }
  const Clock& clock() const override { return clock_; }
  Status Put(std::string_view key, std::string_view value) override {
    return inner_.Put(key, value);
  }
  Result<std::string> Get(std::string_view key, std::chrono::milliseconds deadline) override;
  Status Delete(std::string_view key) override { return inner_.Delete(key); }
  Result<std::vector<std::optional<std::string>>> Look(const std::vector<std::string>& keys,
                                                       std::chrono::milliseconds patience) override;
  Status PutAll(const std::vector<std::string>& keys,
                const std::vector<std::string>& values) override {
    return inner_.PutAll(keys, values);
  }
  Status DeleteAll(const std::vector<std::string>& keys) override { return inner_.DeleteAll(keys); }

 private:
  Coordinator& inner_;
  const Clock& clock_;
  std::atomic<int64_t> until_{std::numeric_limits<int64_t>::max()};
};

// A key of each peer, read in the order of ranks: many are waited for and fetched together, and who
// is late then by itself. One pass over the ranks; not thread-safe.
class PeerKeys {
 public:
  using KeyOf = std::function<std::string(int rank)>;
  // `deadline`: of a wait for one peer, before which at most an eighth more is spent on waiting for
  // it with others.
  PeerKeys(Coordinator& coordinator, std::chrono::milliseconds deadline, KeyOf key_of)
      : coordinator_(coordinator), deadline_(deadline), key_of_(std::move(key_of)) {}

  // The value of a rank above those asked for before, waited for by `wait` where it is late: by
  // default by the coordinator's Get.
  using Wait = std::function<Result<std::string>(const std::string& key)>;
  Result<std::string> Get(int rank, const Wait& wait);
  Result<std::string> Get(int rank);

 private:
  void LookFrom(int rank);

  Coordinator& coordinator_;
  const std::chrono::milliseconds deadline_;
  const KeyOf key_of_;
  std::vector<std::optional<std::string>> ahead_;  // of ranks from first_ on
  int first_ = 0;
  int looked_to_ = 0;  // those from here on were not looked for
  int size_ = 8;       // of a look: more where all have spoken, fewer where few have
};

// What one rank tells another: a value, or why there is none. `value` counts where `status` is ok.
std::string EncodeResult(const Status& status, std::string_view value);
// What the peer sent; kInternal with `what` for bytes that are no result.
Result<std::string> DecodeResult(std::string_view bytes, std::string_view what);

// Collective over all ranks of the coordinator. `tag` must be unique per use within the job, and
// the same on every rank. Keys are deleted when the last rank has read them. Traffic is a star
// around rank 0: O(world) operations. Rank 0 waits `deadline` for all peers together; the others
// wait for rank 0 twice that, so that its finding, with the late rank's number, reaches them.
//
// Every rank's value on rank 0 alone, in rank order; an empty vector on the others, which do not
// wait.
Result<std::vector<std::string>> Gather(Coordinator& coordinator, std::string_view tag,
                                        std::string_view value, std::chrono::milliseconds deadline);
// The same of values that ranks may have failed to make. On rank 0 the failure of the lowest
// failing rank, with "rank r: " before its message.
Result<std::vector<std::string>> GatherResults(Coordinator& coordinator, std::string_view tag,
                                               const Result<std::string>& value,
                                               std::chrono::milliseconds deadline);
// Every rank's value, in rank order, on every rank.
Result<std::vector<std::string>> AllGather(Coordinator& coordinator, std::string_view tag,
                                           std::string_view value,
                                           std::chrono::milliseconds deadline);
// Rank 0's value on every rank (others' `value` is ignored).
Result<std::string> Broadcast(Coordinator& coordinator, std::string_view tag,
                              std::string_view value, std::chrono::milliseconds deadline);
// Rank 0's value, or its failure, on every rank. Ranks other than 0 pass anything.
Result<std::string> BroadcastResult(Coordinator& coordinator, std::string_view tag,
                                    const Result<std::string>& value,
                                    std::chrono::milliseconds deadline);
// The same in two halves. What rank 0 announced stays in the store until it is known that every
// rank has read it: from what all have said since, after which rank 0 calls Retract, or by Settle,
// on all.
Result<std::string> Announce(Coordinator& coordinator, std::string_view tag,
                             const Result<std::string>& value, std::chrono::milliseconds deadline);
void Retract(Coordinator& coordinator, std::string_view tag);
void Settle(Coordinator& coordinator, std::string_view tag, std::chrono::milliseconds deadline);
// Every rank tells rank 0 its value, and rank 0 each rank its own of the answers, or why there are
// none. Rank 0 makes them by `answer`, from the values in rank order, and goes on without waiting
// until they are read: after the last one of a job it has to stay until the others are done.
using Answer = std::function<Result<std::vector<std::string>>(std::vector<std::string> values)>;
Result<std::string> Consult(Coordinator& coordinator, std::string_view tag, std::string_view value,
                            const Answer& answer, std::chrono::milliseconds deadline);
// Ok when all ranks gave ok; otherwise, on every rank, the failure of the lowest failing rank with
// "rank r: " before its message. Rank 0 hears all, and tells all one small verdict.
Status AgreeOn(Coordinator& coordinator, std::string_view tag, const Status& mine,
               std::chrono::milliseconds deadline);

// Ranks as threads of one process.
class LocalCoordinatorHub {
 public:
  explicit LocalCoordinatorHub(int world);
  ~LocalCoordinatorHub();
  // Valid as long as the hub.
  Coordinator& rank(int r);

 private:
  struct State;
  class Member;
  std::unique_ptr<State> state_;
  std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace keel::checkpoint
