// Keel's side of the training benchmark: a worker that answers lines (bench/peers/README.md).
#pragma once

#include <cstdint>
#include <string>

namespace keel::bench {

struct TrainWorkerOptions {
  std::string model;              // Hugging Face directory
  std::string dtype = "float32";  // or bfloat16
  int64_t sequence = 512;
  int64_t batch = 4;
  int threads = 2;
  std::string device = "cpu";  // or cuda, cuda:N
};

// Reads commands from standard input until quit or its end. Throws keel::Error.
void RunWorker(const TrainWorkerOptions& options);

}  // namespace keel::bench
