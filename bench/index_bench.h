// How long a checkpoint of very many boxes takes to open and to plan, and what memory that needs.
#pragma once

#include <cstdint>
#include <string>

#include "common/file_system.h"
#include "common/json.h"

namespace keel::bench {

// Makes `directory`, a checkpoint of about `boxes` boxes of 16 bytes: 64 in each tensor, one in
// each of 64 files.
void WriteManyBoxes(FileSystem& fs, const std::string& directory, int64_t boxes);

// Opens it, and reads it as a rank that wants everything (`all`), or as one that wants what is in
// one of the 64 files. Seconds, processor time of all of it, and the peak of resident memory above
// that before.
Json MeasureOpenAndPlan(const FileSystem& fs, const std::string& directory, bool all);

// Plans a save of as many boxes by 4 ranks, twice: the second time nothing has changed.
Json MeasureSavePlan(int64_t boxes);

}  // namespace keel::bench
