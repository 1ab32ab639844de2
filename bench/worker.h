// The workers of keel_bench: what a driver starts as `keel_bench worker NAME OPTION...`.
//
// Those that need no torch stand in the program's table (main.cc), the others in that of the
// keel_bench_torch module (torch_workers.cc).
#pragma once

#include <span>
#include <string_view>

#include <CLI/CLI.hpp>

namespace keel::bench {

struct WorkerEntry {
  std::string_view name;
  // Adds its options, and what it does with them as the callback, which may throw keel::Error.
  void (*add)(CLI::App& worker);
};

// Null: none has that name.
const WorkerEntry* FindWorker(std::span<const WorkerEntry> workers, std::string_view name);

// Runs it with the options behind argv[0], which is its name. Returns the exit code.
int RunWorker(const WorkerEntry& worker, int argc, char** argv);

}  // namespace keel::bench
