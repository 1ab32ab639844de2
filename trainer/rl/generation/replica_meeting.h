// How the ranks of a rollout replica find each other, whichever of them were started again.
#pragma once

#include <chrono>
#include <string>

#include "common/status.h"
#include "parallel/store/store.h"

namespace keel::trainer::rl {

// The name of a group that all ranks of replica `replica` that are alive now agree on, and that was
// never used before. `rank` of `size`, within the replica. Collective over them;
// kDeadlineExceeded: one was not there, and which.
Result<std::string> MeetReplica(const parallel::Store& store, int replica, int rank, int size,
                                std::chrono::milliseconds deadline);

}  // namespace keel::trainer::rl
