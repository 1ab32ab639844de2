// Assembles a step from what all ranks have written, and publishes it. Rank 0 only.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/checkpointer.h"
#include "checkpoint/committer.h"
#include "checkpoint/manifest.h"
#include "checkpoint/save_messages.h"
#include "checkpoint/save_planner.h"
#include "common/clock.h"
#include "common/file_system.h"
#include "common/status.h"

namespace keel::checkpoint {

// The directories a save needs, relative to the step's, parents before children.
std::vector<std::string> DirectoriesOf(const SaveRequest& request, const SavePlan& plan);
// Not ok when two files of the save would have one path, or a path leaves the step's directory.
Status CheckDocuments(const SaveRequest& request, const SavePlan& plan);

// Writes documents, the whole model if asked for, index and manifest, and renames. `reports` are
// those of all ranks, in rank order; `sequence` is above that of every commit that is there.
// `guard` as in saver.h. Returns the manifest that was published.
Result<Manifest> PublishStep(FileSystem& fs, Committer& committer, const Clock& clock,
                             const std::function<Status()>& guard, const CheckpointOptions& options,
                             const SaveRequest& request, const SavePlan& plan,
                             const SaveOrder& order, int64_t sequence,
                             std::vector<SaveReport> reports);

}  // namespace keel::checkpoint
