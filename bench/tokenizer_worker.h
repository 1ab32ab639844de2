// Keel's side of the benchmark of tokenizers: encodes a file of texts in one thread.
//
//   keel_bench worker tokenizer --tokenizer DIR --texts FILE     (texts are separated by zero
//   bytes)
//
// Ready with {"load_s", "bytes"}. `encode N`: {"seconds", "ids", "check"} of N passes over all
// texts, `scan N` the same of reading their bytes alone. Seconds are of the processor.
#pragma once

#include <CLI/CLI.hpp>

namespace keel::bench {

void AddTokenizerWorker(CLI::App& worker);

}  // namespace keel::bench
