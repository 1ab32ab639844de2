// ProcessGroup over NCCL, for tensors in device memory.
#pragma once

#include <memory>

#include "parallel/groups/operation_watch.h"
#include "parallel/groups/process_group.h"

namespace keel::parallel {

// What PyTorch's own watchdog would do about an operation that hangs is left to `watch`, which
// outlives the group. When this returns, the ranks are connected for collectives.
std::unique_ptr<ProcessGroup> MakeNcclGroup(const Store& store, int global_rank,
                                            const GroupOptions& options, OperationWatch& watch);

}  // namespace keel::parallel
