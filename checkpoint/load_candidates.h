// LoadCandidates: which checkpoint a load tries next, as rank 0 finds them; and the same one, as
// the other ranks come to see it.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpointer.h"
#include "checkpoint/step_reader.h"
#include "common/file_system.h"
#include "common/log.h"
#include "common/status.h"

namespace keel::checkpoint {

// What rank 0 found and all ranks try.
struct LoadCandidate {
  std::string directory;
  std::string manifest_digest;
};

class LoadCandidates {
 public:
  // All must outlive this.
  LoadCandidates(const FileSystem& fs, Logger& log, const LoadRequest& request)
      : fs_(fs), log_(log), request_(request) {}

  // What there is, in the order of trying: resume_path alone, or the newest first. Appends what is
  // damaged to `skipped`. An intact checkpoint that this build cannot read is an error.
  Status List(std::vector<SkippedCheckpoint>* skipped);
  // Opens one after the other until one is whole, as far as can be seen without reading its data.
  // Nothing when there is none at all; kDataLoss when there are some and none is whole.
  Result<std::optional<StepReader>> Next(std::vector<SkippedCheckpoint>* skipped);
  bool Has(std::string_view directory) const;

 private:
  const FileSystem& fs_;
  Logger& log_;
  const LoadRequest& request_;
  std::vector<std::string> directories_;
  size_t next_ = 0;
};

// On the other ranks: what rank 0 has seen whole. Looks again for `grace`, since network file
// systems show new files late.
Result<StepReader> OpenCandidate(const FileSystem& fs, const LoadCandidate& candidate,
                                 std::chrono::milliseconds grace);

}  // namespace keel::checkpoint
