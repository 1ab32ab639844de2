// StepPublisher: assembles a step from what all ranks have written, and publishes it. Rank 0 only.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/base/requests.h"
#include "checkpoint/commit/committer.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/save/save_messages.h"
#include "checkpoint/save/save_planner.h"
#include "common/clock.h"
#include "common/files/file_system.h"
#include "common/status.h"

namespace keel::checkpoint {

// The directories a save needs, relative to the step's, parents before children.
std::vector<std::string> DirectoriesOf(const SaveRequest& request, const SavePlan& plan);
// Not ok when two files of the save would have one path, or a path leaves the step's directory.
Status CheckDocuments(const SaveRequest& request, const SavePlan& plan);

// What a step is made of.
struct StepParts {
  const SaveRequest& request;
  const SavePlan& plan;
  const SaveOrder& order;
  int64_t sequence = 0;             // above that of every commit that is there
  std::vector<SaveReport> reports;  // of all ranks, in rank order
};

class StepPublisher {
 public:
  // All must outlive this. `guard` as in saver.h.
  StepPublisher(FileSystem& fs, Committer& committer, const Clock& clock,
                const CheckpointOptions& options, const std::function<Status()>& guard)
      : fs_(fs), committer_(committer), clock_(clock), options_(options), guard_(guard) {}

  // Writes documents, the whole model if asked for, index and manifest, and renames. Returns the
  // manifest that was published.
  Result<Manifest> Publish(StepParts parts);

 private:
  struct Assembly;  // of one step

  Status AddTensorFiles(Assembly* step);
  Status AddDocuments(Assembly* step);
  Status AddWholeModels(Assembly* step);
  Status AddIndex(Assembly* step);
  Result<std::vector<std::string>> DropEmptyDirectories(const Assembly& step);
  // Reads a file of the step from the disk, if what it is about to replace may then go.
  Status MakeSureOf(const Assembly& step, const std::string& path, const ChunkedDigest& digest);

  FileSystem& fs_;
  Committer& committer_;
  const Clock& clock_;
  const CheckpointOptions& options_;
  const std::function<Status()>& guard_;
};

}  // namespace keel::checkpoint
