// What the disk and the memory can do, measured by the plainest possible loops: the limits that
// saves and loads are compared with in the same run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/save/io_backend.h"
#include "common/files/file_system.h"
#include "common/status.h"

namespace keel::bench {

// Where bytes are on their way to or from a file: in one small buffer per thread, which stays in
// the caches, or in as much memory as there are bytes, as those of a save or load have to be.
enum class Through { kBuffer, kMemory };

// Seconds to write `bytes` (in whole blocks of 4 MiB) into a new file and fsync it; with io_uring
// as many writes at once as a save has. An error where this way is not possible. The file is
// removed.
Result<double> WriteSeconds(FileSystem& fs, const std::string& path, int64_t bytes,
                            checkpoint::IoBackend backend, Through through);

// Seconds of the least that a durable commit of `bytes` needs: a new directory with one file,
// written and fsynced, renamed, and both directories fsynced. It is removed.
Result<double> CommitSeconds(FileSystem& fs, const std::string& name, int64_t bytes);

struct ReadTotal {
  int64_t bytes = 0;
  double seconds = 0;
};
// Reads these files block by block and hashes each block (XXH3-128). Memory is touched before.
Result<ReadTotal> ReadAndHash(const FileSystem& fs, const std::vector<std::string>& paths,
                              int threads, Through through);

}  // namespace keel::bench
