// Records: checkpoints.jsonl, one JSON object a line per save and load, and "begin" where a job
// begins.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

#include "common/files/file_system.h"
#include "common/json.h"
#include "common/status.h"

namespace keel::checkpoint {

// Adds a line. A line that a crash or a full disk cut off stays, as a line of its own; readers skip
// it.
Status AppendRecord(FileSystem& fs, std::string_view path, const Json& record);
// The records of the run directory, in order; none where there is no such file. What is no record,
// such as a line that was cut off, is left out. One is in memory at a time: those of a long run of
// many ranks have gigabytes.
Status VisitRecords(const FileSystem& fs, const std::function<void(const Json&)>& visit);
// Seconds of the longest of the last `count` saves that ended well; 0 when none can be read.
double LongestOfLastSaves(const FileSystem& fs, size_t count);

}  // namespace keel::checkpoint
