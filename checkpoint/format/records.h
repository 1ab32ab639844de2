// Records: checkpoints.jsonl, one JSON object a line per save and load, and "begin" where a job
// begins.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "common/files/file_system.h"
#include "common/json.h"
#include "common/status.h"

namespace keel::checkpoint {

// Adds a line. A line that a crash cut off stays; readers skip it.
Status AppendRecord(FileSystem& fs, std::string_view path, const Json& record);
// The records of the run directory, in order; none where there is no such file. What is no record,
// such as a line that a crash cut off, is left out.
std::vector<Json> ReadRecords(const FileSystem& fs);
// Seconds of the longest of the last `count` saves that ended well; 0 when there is none.
double LongestOfLastSaves(const FileSystem& fs, size_t count);

}  // namespace keel::checkpoint
