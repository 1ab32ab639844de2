// Keel's side of the generation benchmark: a worker that answers lines (bench/peers/README.md).
#pragma once

#include <cstdint>
#include <string>

namespace keel::bench {

struct RolloutWorkerOptions {
  std::string model;               // Hugging Face directory
  std::string dtype = "bfloat16";  // or float32
  int threads = 2;
  std::string device = "cpu";  // or cuda, cuda:N
};

// Reads commands from standard input until quit or its end. Throws keel::Error.
void RunWorker(const RolloutWorkerOptions& options);

}  // namespace keel::bench
