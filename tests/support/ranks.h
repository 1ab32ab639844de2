// Runs ranks as threads of the test program, each with its own ParallelContext.
#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "parallel/groups/context.h"
#include "parallel/groups/cuda_module.h"

namespace keel::testing {

// Ranks compute on GPUs, one each, where KEEL_CUDA_MODULE names the module of pretend ones.
inline bool OnPretendGpus() { return std::getenv("KEEL_CUDA_MODULE") != nullptr; }
inline at::Device DeviceOf(const parallel::ParallelContext& context) {
  return OnPretendGpus() ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(context.rank()))
                         : at::Device(at::kCPU);
}
// Of what has no ranks: the first pretend GPU, ready, where there are some.
inline at::Device LoneDevice() {
  if (!OnPretendGpus()) return at::kCPU;
  ValueOrThrow(parallel::LoadCudaModule())->SetDevice(0);
  return {at::kCUDA, 0};
}

// Calls body on every rank of the layout; fails the test with the message of each rank that throws.
inline void RunRanks(const parallel::Layout& layout,
                     const std::function<void(parallel::ParallelContext&)>& body) {
  // c10d's flight recorder is one object a process, unguarded between groups of several threads.
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  const parallel::Store store = parallel::Store::InProcess();
  std::vector<std::string> errors(static_cast<size_t>(layout.world()));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < layout.world(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        at::set_num_threads(1);
        parallel::ContextOptions options;
        options.deadline = std::chrono::seconds(60);
        if (OnPretendGpus()) {
          options.cuda = true;
          options.device_index = rank;
          ValueOrThrow(parallel::LoadCudaModule())->SetDevice(rank);
        }
        parallel::ParallelContext context(layout, rank, store, options);
        body(context);
        context.world().Barrier();
        context.Shutdown();
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (!errors[rank].empty())
      ADD_FAILURE() << layout.ToString() << ", rank " << rank << ": " << errors[rank];
  }
}

// In a world of tp * dp * pp.
inline void RunRanks(int tp, int dp, int pp,
                     const std::function<void(parallel::ParallelContext&)>& body) {
  RunRanks(ValueOrThrow(parallel::Layout::Make(tp * dp * pp, tp, pp)), body);
}

}  // namespace keel::testing
