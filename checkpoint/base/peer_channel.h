// PeerChannel: bulk bytes between the ranks of a load.
//
// Beside the Coordinator, which carries small texts. Implementations: ranks as threads of one
// process (LocalChannelHub) and the job's process group (trainer/run/group_channel.h). One call at
// a time. After a failed call the channel is broken: what was under way is in an unknown state.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "common/status.h"

namespace keel::checkpoint {

class PeerChannel {
 public:
  struct Send {
    int peer = 0;
    std::span<const std::byte> bytes;
  };
  struct Receive {
    int peer = 0;
    std::span<std::byte> bytes;
  };

  virtual ~PeerChannel() = default;
  virtual int rank() const = 0;
  virtual int world() const = 0;
  // Collective. What rank a sends to rank b arrives, in order, in what b receives from a in the
  // same call; sizes agree, and none is 0. Returns when everything has arrived and the buffers are
  // free again. kDeadlineExceeded and kUnavailable name the rank that was waited for.
  virtual Status Exchange(std::span<const Send> sends, std::span<const Receive> receives,
                          std::chrono::milliseconds deadline) = 0;
};

// Ranks as threads of one process.
class LocalChannelHub {
 public:
  explicit LocalChannelHub(int world);
  ~LocalChannelHub();
  // Valid as long as the hub.
  PeerChannel& rank(int r);

 private:
  struct State;
  class Member;
  std::unique_ptr<State> state_;
  std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace keel::checkpoint
