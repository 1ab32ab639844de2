// A group with ranks that may be given up: somebody else finds out that they are lost, long before
// any deadline, and says so.
#pragma once

#include <atomic>
#include <memory>

#include "parallel/groups/process_group.h"

namespace keel::parallel {

// As MakeProcessGroup. Once `given_up` is set, every wait in the group, over gloo also for its
// ranks to meet, ends soon, as for a peer that is lost, and no operation begins any more. It
// outlives the group; null: never.
std::unique_ptr<ProcessGroup> MakeLinkGroup(const Store& store, int global_rank,
                                            const GroupOptions& options,
                                            const std::atomic<bool>* given_up);

}  // namespace keel::parallel
