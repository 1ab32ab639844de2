// How long a checkpoint of very many boxes takes to open and to plan, and what memory that needs.
//
//   keel_bench worker index write|open-all|open-part|save-plan --boxes N --checkpoints DIR
//
// write makes a checkpoint of about N boxes of 16 bytes: 64 in each tensor, one in each of 64
// files. open-* read it, as a rank that wants everything, or as one that wants what is in one of
// the files. save-plan plans a save of as many boxes by 4 ranks, twice: the second time nothing has
// changed. The answer is one line of JSON: seconds, processor time of all of it, and the peak of
// resident memory above that before.
#pragma once

#include <CLI/CLI.hpp>

namespace keel::bench {

void AddIndexWorker(CLI::App& worker);

}  // namespace keel::bench
