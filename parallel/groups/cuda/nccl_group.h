// ProcessGroup over NCCL, for tensors in device memory.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "parallel/groups/operation_watch.h"
#include "parallel/groups/process_group.h"

namespace keel::parallel {

// What PyTorch's own watchdog would do about an operation that hangs is left to `watch`, which
// outlives the group. When this returns, the ranks are connected for collectives. A link has a
// watch of its own, so that its end is not that of other groups. For `given_up` see link_group.h.
std::unique_ptr<ProcessGroup> MakeNcclGroup(const Store& store, int global_rank,
                                            const GroupOptions& options,
                                            const std::atomic<bool>* given_up,
                                            OperationWatch& watch);

// For how long the end of communicators may take.
inline constexpr std::chrono::seconds kNcclAbortPatience(60);

// For OperationWatch: calls `aborts`, each of which aborts communicators of NCCL on this device, in
// such a way that none waits for another one's end. False: NCCL has not come back in time, and a
// thread is left in it.
bool AbortNcclTogether(const OperationWatch::Aborts& aborts, c10::DeviceIndex device);

}  // namespace keel::parallel
