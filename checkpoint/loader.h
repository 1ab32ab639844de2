// Loader: finds the newest checkpoint that verifies, and fills live memory from it, or nothing.
//
// Rank 0 chooses and tells all; each rank reads what it needs into staging memory and verifies
// every byte; live memory changes only after all ranks voted "verified". Damage, on any rank, makes
// all of them go on with the next older checkpoint. See docs/formats/checkpoint.md.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpointer.h"
#include "checkpoint/coordinator.h"
#include "checkpoint/manifest.h"
#include "checkpoint/step_reader.h"
#include "common/file_system.h"
#include "common/log.h"
#include "common/status.h"

namespace keel::checkpoint {

class Loader {
 public:
  // All must outlive this.
  Loader(const FileSystem& fs, Coordinator& coordinator, Logger& log,
         std::chrono::milliseconds deadline, int threads)
      : fs_(fs), coordinator_(coordinator), log_(log), deadline_(deadline), threads_(threads) {}

  // Collective; `tag` as in coordinator.h. The result is the same on every rank but for bytes and
  // times.
  Result<std::optional<LoadRecord>> Load(std::string_view tag, const LoadRequest& request);

 private:
  // What rank 0 found and all ranks try.
  struct Candidate {
    std::string directory;  // empty: nothing to load
    std::string manifest_digest;
  };
  // Rank 0: the candidates in the order of trying.
  Result<std::vector<std::string>> ListCandidates(const LoadRequest& request,
                                                  std::vector<SkippedCheckpoint>* skipped);
  // Reads and verifies one candidate into staging and votes; applies when the vote is good.
  Status Try(std::string_view tag, const LoadRequest& request, const Candidate& candidate,
             LoadRecord* record);
  // This rank's part of Try before the vote. Damage is kDataLoss, anything else stops the load.
  struct Staged;
  Status ReadIntoStaging(const LoadRequest& request, const Candidate& candidate, Staged* staged,
                         LoadRecord* record);
  Status CheckRequest(const LoadRequest& request, const StepReader& reader) const;
  // Rank 0: every saved tensor must be wanted by some rank.
  Status CheckUnused(std::string_view tag, const LoadRequest& request, const Staged& staged);
  Status ReadDocuments(std::string_view tag, const LoadRequest& request, const Staged& staged,
                       LoadRecord* record);

  const FileSystem& fs_;
  Coordinator& coordinator_;
  Logger& log_;
  const std::chrono::milliseconds deadline_;
  const int threads_;
};

// The longest a peer may take for `bytes` of disk beside the deadline: 20 MB/s.
std::chrono::milliseconds WithDiskTime(std::chrono::milliseconds deadline, int64_t bytes);

}  // namespace keel::checkpoint
