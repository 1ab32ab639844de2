// `keel bench checkpoint`: a synchronous save against what the disk can do in the same run.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include <CLI/CLI.hpp>

namespace keel::bench {

struct CheckpointBenchOptions {
  std::string directory = ".";  // on the disk to be measured; a folder is made in it and removed
  int64_t megabytes = 1000;     // of state, over all ranks
  int ranks = 2;                // threads of this process
  int rounds = 6;               // each: limits, save, save, limits
  std::string io = "auto";      // auto | buffered | direct
};

// Writes one JSON object to `out`: command, machine, raw samples of every round, and the median of
// the paired ratios with its bootstrap interval. The limit of a round is the faster of O_DIRECT
// writes and of buffered writes with fsync, by as many threads as there are ranks, of as many
// bytes.
int BenchCheckpoint(const CheckpointBenchOptions& options, std::ostream& out, std::ostream& err);

// Adds `checkpoint` to `keel bench`.
void AddCheckpointBench(CLI::App& bench, int* exit_code);

}  // namespace keel::bench
