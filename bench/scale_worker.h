// What rank 0 of a job of thousands of ranks has to do for a save and a load: its real code, with
// peers that are made up (scale_peers.h) in a process of their own.
#pragma once

#include <string>

namespace keel::bench {

struct ScaleWorkerOptions {
  int ranks = 1024;       // 128, 1024, 4096, 16384
  std::string directory;  // for checkpoints, whose files have sizes and no content
  bool load = true;       // a load too, by a few ranks, of what was saved
};

// Prints a line of JSON: a first save and one like it, and a load; messages, bytes, seconds,
// memory. Forks, so call it while there is one thread. Throws keel::Error.
void RunWorker(const ScaleWorkerOptions& options);

}  // namespace keel::bench
