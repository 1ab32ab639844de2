// A group of ranks on devices whose messages go by way of their hosts, over gloo: for ranks that
// share a GPU, which NCCL does not serve. Slow; sums have the order of gloo's.
#pragma once

#include <memory>

#include "parallel/groups/process_group.h"

namespace keel::parallel {

// As MakeProcessGroup. Each operation waits for the device before it sends. Tensors may also be of
// the host.
std::unique_ptr<ProcessGroup> MakeHostStagedGroup(const Store& store, int global_rank,
                                                  const GroupOptions& options);

}  // namespace keel::parallel
