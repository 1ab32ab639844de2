// Keel's ranks of the weight sync benchmark, which also act its peers: a worker that answers lines
// (bench/peers/README.md).
#pragma once

#include <string>

namespace keel::bench {

struct SyncWorkerOptions {
  std::string config;  // config.json
  int tp = 2;          // of the trainer
  int pp = 2;
  int rollout_tp = 2;
  std::string dtype = "bfloat16";  // or float32
  int threads = 1;
};

// Reads commands from standard input until quit or its end. One of the ranks that the environment
// tells. Throws keel::Error.
void RunWorker(const SyncWorkerOptions& options);

}  // namespace keel::bench
