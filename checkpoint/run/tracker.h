// Tracker: latest_checkpointed_iteration.txt, the step of the last commit and a newline.
//
// For people and for other programs. Keel itself never needs it: the truth is the newest directory
// whose manifest verifies.
#pragma once

#include <cstdint>
#include <optional>

#include "common/files/file_system.h"
#include "common/log.h"
#include "common/status.h"

namespace keel::checkpoint {

// Atomic and durable. Call only after the step is committed.
Status WriteTracker(FileSystem& fs, int64_t step);
// Nothing when the file is missing, empty or not a number.
std::optional<int64_t> ReadTracker(const FileSystem& fs);
// Before `step` is removed: a tracker that names it, since it could not be written when a later
// step was committed, names `newest` from here on. Where it still cannot be written it is removed:
// other programs are better told of no step than of one that is gone. Durable. kOk: the tracker
// does not name `step`.
Status LeadTrackerAwayFrom(FileSystem& fs, int64_t step, int64_t newest, Logger& log);

}  // namespace keel::checkpoint
