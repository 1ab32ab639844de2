// LoadCandidates: which checkpoint a load tries next, as rank 0 finds them; and the same one, as
// the other ranks come to see it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/base/requests.h"
#include "checkpoint/read/step_reader.h"
#include "checkpoint/run/catalog.h"
#include "common/files/file_system.h"
#include "common/log.h"
#include "common/status.h"

namespace keel::checkpoint {

// What rank 0 found and all ranks try.
struct LoadCandidate {
  std::string directory;
  std::string manifest_digest;
  int64_t manifest_size = 0;
  int64_t index_size = 0;
};

class LoadCandidates {
 public:
  // All must outlive this. `run_id` as in LoaderOptions.
  LoadCandidates(const FileSystem& fs, Logger& log, const LoadRequest& request, std::string run_id,
                 const SettingNames& names)
      : fs_(fs), log_(log), request_(request), run_id_(std::move(run_id)), names_(names) {}

  // What there is, in the order of trying: resume_path alone, or the run's, the newest first.
  // Appends what is damaged to `skipped`. An intact checkpoint that this build cannot read is an
  // error, and so is it when all that there are are of other runs.
  Status List(std::vector<SkippedCheckpoint>* skipped);
  // Opens one after the other until one is whole, as far as can be seen without reading its data.
  // Nothing when there is none at all; kDataLoss when there are some and none is whole, or kIo where
  // one of these could not be read. Lists again where all others are tried and one has gone
  // meanwhile, as beside a run that keeps one.
  Result<std::optional<StepReader>> Next(std::vector<SkippedCheckpoint>* skipped);
  bool Has(std::string_view directory) const;

 private:
  const FileSystem& fs_;
  Logger& log_;
  Status NoteForeign(const std::vector<const CatalogEntry*>& foreign,
                     const std::vector<SkippedCheckpoint>& skipped) const;

  const LoadRequest& request_;
  const std::string run_id_;
  const SettingNames names_;
  std::vector<std::string> directories_;
  size_t next_ = 0;
  bool vanished_ = false;  // one of them
  bool unread_ = false;    // one of what is skipped, of which nothing is known but that
  int looks_left_ = 8;
};

// On the other ranks: what rank 0 has seen whole, of which only files that are read are looked at
// again. Looks again for `grace`, since network file systems show new files late.
Result<StepReader> OpenCandidate(const FileSystem& fs, const LoadCandidate& candidate,
                                 std::chrono::milliseconds grace);
// Likewise, from what rank 0 has handed on of it.
Result<StepReader> OpenHandedOn(const FileSystem& fs, const LoadCandidate& candidate,
                                StepReader::Texts texts, std::chrono::milliseconds grace);

}  // namespace keel::checkpoint
