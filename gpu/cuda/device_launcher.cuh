// Starts a body on a stream: 256 threads a block, which are one team or eight.
#pragma once

#include <cuda_runtime_api.h>

#include <climits>
#include <stdexcept>
#include <string>

#include "gpu/block_memory.h"
#include "gpu/cuda/device_team.cuh"
#include "gpu/kernel_table.h"

namespace keel::gpu {

// At least two blocks on a processor: of 128 registers a thread at most. Without a number ptxas
// aims at more blocks, and spills for it.
template <class Body>
__global__ void __launch_bounds__(kBlockThreads, 2)
    RunBody(const __grid_constant__ Body body, int64_t teams, int64_t shared) {
  extern __shared__ double memory[];
  constexpr int kTeams = kBlockThreads / Body::kLanes;
  const int team = kTeams > 1 ? static_cast<int>(threadIdx.x) / Body::kLanes : 0;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kTeams + team;
  if (index >= teams) return;  // whole warps, which wait for no other
  body(DeviceTeam<Body::kLanes>(reinterpret_cast<std::byte*>(memory) + team * shared), index);
}

struct DeviceLauncher {
  // body(team, index) for index in [0, teams), each with `shared` bytes.
  template <class Body>
  static void Run(const Body& body, int64_t teams, int64_t shared, Stream stream) {
    if (teams == 0) return;
    constexpr int64_t kTeams = kBlockThreads / Body::kLanes;
    shared = (shared + 15) / 16 * 16;
    const int64_t blocks = (teams + kTeams - 1) / kTeams;
    if (blocks > INT_MAX)
      throw std::runtime_error("a kernel of " + std::to_string(blocks) + " blocks");
    CheckBlockMemory(shared * kTeams);
    RunBody<Body>
        <<<static_cast<unsigned>(blocks), kBlockThreads, static_cast<size_t>(shared * kTeams),
           static_cast<cudaStream_t>(stream)>>>(body, teams, shared);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
      throw std::runtime_error(std::string("a kernel of Keel's was not started: ") +
                               cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")");
    }
  }
};

}  // namespace keel::gpu
