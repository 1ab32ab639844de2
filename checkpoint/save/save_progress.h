// SaveProgress: when a save last got somewhere, here and on the ranks that are waited for.
//
// A slow disk is not one that stands still: as long as its calls return, the save goes on, however
// many there are. A rank that works says so over the coordinator, now and then; who waits for it
// waits on while it does. A rank that only waits says nothing: two that wait for each other end.
// One save at a time; Move and moved are for any thread, the rest for the one that saves.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/base/coordinator.h"
#include "common/clock.h"
#include "common/status.h"

namespace keel::checkpoint {

class SaveProgress {
 public:
  // Both must outlive this. `deadline`: how long a call of the disk, or a peer, may take. A save
  // that takes no longer than an eighth of it costs no message.
  SaveProgress(Coordinator& coordinator, const Clock& clock, std::chrono::milliseconds deadline);

  // A save begins; `tag` as in coordinator.h. Its end on this rank, when its writers are at rest.
  void Begin(std::string_view tag);
  void End();

  // This rank's disk, or the protocol, got somewhere.
  void Move();
  // The last time of that, or of a peer's that this rank waits for; by the monotonic clock.
  std::chrono::nanoseconds moved() const { return std::chrono::nanoseconds(moved_.load()); }

  // Waits for what `peer` puts under `key`, as long as it moves: kDeadlineExceeded when it has not
  // for `patience`, counted from `*since` or from its last move, which is noted there. `passes_on`:
  // others wait for this rank meanwhile, and hear that it waits for one that moves.
  Result<std::string> Await(const std::string& key, int peer, std::chrono::milliseconds patience,
                            bool passes_on, std::chrono::nanoseconds* since);

 private:
  std::string KeyOf(int rank) const;
  void Tell(int64_t now);

  Coordinator& coordinator_;
  const Clock& clock_;
  const std::chrono::nanoseconds interval_;
  std::string tag_;
  std::atomic<int64_t> moved_{0};  // nanoseconds, as the others
  std::atomic<int64_t> told_{0};
  std::atomic<bool> has_told_{false};
};

}  // namespace keel::checkpoint
