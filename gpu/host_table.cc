// The kernels as a host runs them, with the lanes of a team in either order.

#include "gpu/all_bodies.h"
#include "gpu/host_launcher.h"
#include "gpu/kernel_table.h"

namespace keel::gpu {

const KernelTable& HostKernelTable(LaneOrder order) {
  static const KernelTable forward = TableOf<HostLauncherInOrder<LaneOrder::kForward>>();
  static const KernelTable backward = TableOf<HostLauncherInOrder<LaneOrder::kBackward>>();
  return order == LaneOrder::kForward ? forward : backward;
}

}  // namespace keel::gpu
