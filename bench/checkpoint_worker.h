// Keel's side of the checkpoint benchmark: one rank, that answers lines (bench/peers/README.md).
#pragma once

#include <cstdint>
#include <string>

#include "bench/state_options.h"

namespace keel::bench {

struct CheckpointWorkerOptions {
  std::string directory;  // for checkpoints: of this worker's ranks alone
  StateOptions state;
  int products = 8;               // a step's matrix products
  int threads = 1;                // of the products
  std::string io = "auto";        // auto | buffered | direct
  int64_t host_memory_cap = 0;    // bytes of staging; 0: none
  bool optimizer_stable = false;  // as with an offloaded optimizer: read where it lies
  int load_threads = 1;
  int writers = 1;
  int keep = 0;  // checkpoints; 0: all
};

// Reads commands from standard input until quit or its end. The ranks of a job find each other by
// the launch environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). Throws keel::Error.
void RunWorker(const CheckpointWorkerOptions& options);

}  // namespace keel::bench
