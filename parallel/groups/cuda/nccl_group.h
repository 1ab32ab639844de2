// ProcessGroup over NCCL, for tensors in device memory.
#pragma once

#include <atomic>
#include <memory>

#include "parallel/groups/operation_watch.h"
#include "parallel/groups/process_group.h"

namespace keel::parallel {

// What PyTorch's own watchdog would do about an operation that hangs is left to `watch`, which
// outlives the group. When this returns, the ranks are connected for collectives. With `given_up`
// it is a link (link_group.h): it has a watch of its own, so that its end is not that of other
// groups.
std::unique_ptr<ProcessGroup> MakeNcclGroup(const Store& store, int global_rank,
                                            const GroupOptions& options,
                                            const std::atomic<bool>* given_up,
                                            OperationWatch& watch);

// For OperationWatch: calls `aborts`, each of which aborts communicators of NCCL, in such a way
// that none waits for another one's end.
void AbortNcclTogether(const OperationWatch::Aborts& aborts);

}  // namespace keel::parallel
