// Keel's side of the offload benchmark, and the copies that are its limit: a worker that answers
// lines (bench/peers/README.md).
#pragma once

#include <string>

namespace keel::bench {

struct OffloadWorkerOptions {
  std::string config;              // config.json
  std::string dtype = "bfloat16";  // or float32
  int threads = 2;
  std::string device = "cpu";  // or cuda, cuda:N
};

// Reads commands from standard input until quit or its end. Throws keel::Error.
void RunWorker(const OffloadWorkerOptions& options);

}  // namespace keel::bench
