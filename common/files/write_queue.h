// WriteQueue: writes that are under way at the same time.
//
// Made by a FileSystem, for files that it has created. One thread at a time. A write that was begun
// is over when Wait has returned it; until then its file and its memory must stay, and the file may
// be neither synced, nor cut, nor closed. What was written is found on the disk after the file's
// Sync, as with WriteAt, whose errors these are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/status.h"

namespace keel {

class File;

class WriteQueue {
 public:
  struct Done {
    uint64_t id = 0;
    Status status;
  };

  virtual ~WriteQueue() = default;  // waits for what is under way
  // Begins to write all of `data`. Fewer writes than the depth of the queue may be under way. An
  // error is told by Wait.
  virtual void Begin(uint64_t id, File& file, int64_t offset, std::span<const std::byte> data) = 0;
  // Waits until any one is over, of which at least one must have been begun and not returned.
  virtual Done Wait() = 0;
};

}  // namespace keel
