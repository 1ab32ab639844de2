// A group of ranks on devices whose messages go by way of their hosts, over gloo: for ranks that
// share a GPU, which NCCL does not serve. Slow; sums have the order of gloo's.
#pragma once

#include <memory>

#include "parallel/groups/process_group.h"

namespace keel::parallel {

// The group of the same ranks, of which `hosts` sends what there is to send. Each operation waits
// for the device before it sends. Tensors may also be of the host.
std::unique_ptr<ProcessGroup> ByWayOfHosts(std::unique_ptr<ProcessGroup> hosts);

}  // namespace keel::parallel
