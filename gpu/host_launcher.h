// Runs a body on the calling thread, team after team.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu/block_memory.h"
#include "gpu/host_team.h"
#include "gpu/kernel_table.h"

namespace keel::gpu {

template <LaneOrder order>
struct HostLauncherInOrder {
  // body(team, index) for index in [0, teams), each with `shared` bytes.
  template <class Body>
  static void Run(const Body& body, int64_t teams, int64_t shared, Stream) {
    CheckBlockMemory((shared + 15) / 16 * 16 * (kBlockThreads / Body::kLanes));
    std::vector<double> memory(static_cast<size_t>(shared + 7) / 8);
    const HostTeam<Body::kLanes, order> team(reinterpret_cast<std::byte*>(memory.data()));
    for (int64_t i = 0; i < teams; ++i)
      body(team, order == LaneOrder::kForward ? i : teams - 1 - i);
  }
};

}  // namespace keel::gpu
