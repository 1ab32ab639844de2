// Reshard: rewrites a checkpoint into other files, value for value.
//
// Loading never needs it, since any layout loads any files. It is for what reads files: fewer of
// them after a large job, or those that each rank of the next one would read alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/read/step_reader.h"
#include "common/clock.h"
#include "common/files/file_system.h"
#include "common/log.h"
#include "common/status.h"

namespace keel::checkpoint {

struct ReshardOptions {
  int world = 1;                     // files per scope, equal in bytes but for a row
  const StepReader* like = nullptr;  // when given: the files and boxes of this checkpoint instead
  int threads = 2;                   // that read and verify
  int64_t memory_bytes = int64_t{64} << 20;  // of tensor data at a time, at least 4 chunks

  std::vector<std::string> Validate() const;  // every problem, as sentences
};

struct ReshardReport {
  std::string directory;
  int64_t tensor_files = 0;
  int64_t bytes = 0;  // of the whole checkpoint
  double seconds = 0;
};

// Writes the checkpoint as the same step of the run directory `run`, which must not have that step:
// under the run directory's lock, by the commit protocol, with new headers, index and manifest.
// Documents, config digest, metric and run id are those of the source. Every byte is verified when
// it is read, and each tensor is proved to be covered exactly once. After an error nothing of it is
// visible.
Result<ReshardReport> ReshardCheckpoint(const StepReader& source, FileSystem& run,
                                        const Clock& clock, Logger& log,
                                        const ReshardOptions& options);

}  // namespace keel::checkpoint
