// What rank 0 of a job of thousands of ranks has to do for a save and a load: its real code, with
// peers that are made up (scale_peers.h) in a process of their own.
//
//   keel_bench worker scale --of N --checkpoints DIR
//
// N is 128, 1024, 4096 or 16384. The files in DIR have sizes and no content. The answer is one line
// of JSON: a first save and one like it, and a load by a few ranks of what was saved; messages,
// bytes, seconds, memory.
#pragma once

#include <CLI/CLI.hpp>

namespace keel::bench {

void AddScaleWorker(CLI::App& worker);

}  // namespace keel::bench
