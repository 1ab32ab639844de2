// What an IoBackend needs of those that write by it, and how fast each one is here.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "checkpoint/base/requests.h"
#include "common/files/file_system.h"

namespace keel::checkpoint {

// Offsets, lengths and memory are to be aligned to blocks.
inline bool WritesBlocks(IoBackend backend) { return backend != IoBackend::kBuffered; }

// Pieces of a writer thread that are under way at once with kIoUring: enough for the disk to have
// the next one when one ends, and few slots of the staging memory.
inline constexpr int kWritesUnderWay = 4;

struct BackendSpeed {
  IoBackend backend = IoBackend::kBuffered;
  double bytes_per_s = 0;  // fsync included
};

// Writes so many bytes, a few megabytes, in `directory` with each back-end that works there, twice,
// in turn; the better time counts. The fastest first; at least kBuffered, with 0 when not even that
// could be measured. The files are removed.
std::vector<BackendSpeed> MeasureBackends(FileSystem& fs, std::string_view directory,
                                          int64_t bytes);

}  // namespace keel::checkpoint
