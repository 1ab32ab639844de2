// Records: checkpoints.jsonl, one JSON object a line per save and load.
#pragma once

#include <string_view>

#include "common/file_system.h"
#include "common/json.h"
#include "common/status.h"

namespace keel::checkpoint {

// Adds a line. A line that a crash cut off stays; readers skip it.
Status AppendRecord(FileSystem& fs, std::string_view path, const Json& record);

}  // namespace keel::checkpoint
