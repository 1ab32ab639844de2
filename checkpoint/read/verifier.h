// Verifier: proves a checkpoint, every byte of it, and says what is wrong where.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/files/file_system.h"
#include "common/status.h"

namespace keel::checkpoint {

struct VerifyReport {
  std::string directory;
  int64_t step = -1;
  int64_t files = 0;
  int64_t bytes = 0;  // read and compared
  int64_t tensors = 0;
  std::vector<std::string>
      problems;  // each names directory, file, chunk, tensors; none: it is whole
  // What the problems say is no damage, where this is not kOk: this process is short of descriptors
  // or memory (kExhausted), or may not read a file (kIo), the checkpoint is being removed, or is
  // gone (kNotFound), another save took its place while it was read (kBusy), or its manifest is
  // intact and of a version or kind that this build does not read (kInvalidData).
  StatusCode unproven = StatusCode::kOk;
  double seconds = 0;
};

// kExhausted or kIo, as in VerifyReport, where `status` says nothing of what was to be read, since
// the reason lies in this process; kOk where it does.
StatusCode ReasonInReader(const Status& status);

// Reads every file of `directory` with `threads` threads; compares sizes and the digests of all
// chunks; proves that the boxes of each tensor cover it exactly, and that each tensor file says of
// itself what the index says of it. Changes nothing; holds a reader's
// lease.
// `from_disk`: not what the page cache holds, as far as the system knows how.
VerifyReport VerifyCheckpoint(const FileSystem& fs, const std::string& directory, int threads,
                              bool from_disk = false);
// For whoever is to remove something on the word of it: from the disk, and once more where there
// are problems, since an error that passes is no damage.
VerifyReport VerifyForRemoval(const FileSystem& fs, const std::string& directory, int threads);

}  // namespace keel::checkpoint
