// Orphans: what a rank that was killed has left running: what the tools and verifiers of the rank
// have started themselves. Linux ends these programs with their rank (LineProcess), but not what
// they have started; their process groups show that.
//
// Once AdoptOrphans was called, processes whose parent has ended are this process's children. What
// leads a group and is killed then has its group killed, as Child does for a rank. What was put
// into a session or group of its own, as a server that is to go on, is left alone. Torch-free.
#pragma once

#include <sys/types.h>

#include <functional>

#include "common/status.h"

namespace keel::tools {

Status AdoptOrphans();

// Reaps children that have ended, until there is none, or one that `is_rank`, which others reap.
// False: there are no children left.
bool ReapOrphans(const std::function<bool(pid_t)>& is_rank);

}  // namespace keel::tools
