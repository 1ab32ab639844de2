#include "checkpoint/base/hand_on.h"

namespace keel::checkpoint {

Status HandOn(PeerChannel& channel, std::span<std::byte> bytes,
              std::chrono::milliseconds deadline) {
  const int rank = channel.rank();
  const int world = channel.world();
  for (int have = 1; have < world; have *= 2) {
    Status status;
    if (rank < have && rank + have < world) {
      const PeerChannel::Send send{rank + have, bytes};
      status = channel.Exchange({&send, 1}, {}, deadline);
    } else if (rank >= have && rank < 2 * have) {
      const PeerChannel::Receive receive{rank - have, bytes};
      status = channel.Exchange({}, {&receive, 1}, deadline);
    } else {
      status = channel.Exchange({}, {}, deadline);
    }
    KEEL_RETURN_IF_ERROR(status);
  }
  return Status::Ok();
}

}  // namespace keel::checkpoint
