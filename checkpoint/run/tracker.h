// Tracker: latest_checkpointed_iteration.txt, the step of the last commit and a newline.
//
// For people and for other programs. Keel itself never needs it: the truth is the newest directory
// whose manifest verifies.
#pragma once

#include <cstdint>
#include <optional>

#include "common/files/file_system.h"
#include "common/status.h"

namespace keel::checkpoint {

// Atomic and durable. Call only after the step is committed.
Status WriteTracker(FileSystem& fs, int64_t step);
// Nothing when the file is missing, empty or not a number.
std::optional<int64_t> ReadTracker(const FileSystem& fs);

}  // namespace keel::checkpoint
