// First contact: what groups do before the first step, so that no connection is made within one.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <string_view>
#include <vector>

#include "parallel/groups/process_group.h"
#include "parallel/store/store.h"

namespace keel::parallel {

// Waits until all of `ranks` (global, this one among them) have come here with the same `store`, a
// part of the job's that nothing else uses. Whoever makes a connection that cannot be given up does
// so after this. Collective. kDeadlineExceeded names the ranks that have not come.
Status MeetInStore(const Store& store, int rank, const std::vector<int>& ranks,
                   std::chrono::milliseconds deadline);

// Sends a message over every link of a pipeline, each to the next stage, or to the one before it if
// `forward` is not set: the one direction in which the group is used. NCCL connects a pair with the
// first message between them, and both hosts stand still until the other is there too; in a
// schedule, where a stage posts a receive before it sends, they would wait for each other. Here the
// links come one after the other, from the first stage on. Collective.
void ConnectNeighbours(ProcessGroup& group, bool forward, const at::Device& device);

}  // namespace keel::parallel
