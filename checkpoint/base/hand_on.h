// HandOn: what rank 0 has read, to all ranks, each of which passes it on.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>

#include "checkpoint/base/peer_channel.h"
#include "common/status.h"

namespace keel::checkpoint {

// Collective over the channel: rank 0's `bytes` become everyone's, who know how many there are. In
// each exchange all that have them give them to one that has not, so that it takes as many as the
// world has binary digits, and no rank sends more often than that. Errors as of Exchange: the ranks
// may then fail at different places.
Status HandOn(PeerChannel& channel, std::span<std::byte> bytes, std::chrono::milliseconds deadline);

}  // namespace keel::checkpoint
