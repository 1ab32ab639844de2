// RunLock: one run, or one tool that changes its checkpoints, at a time in a run directory.
//
// The lock's file carries a line that says who holds it: what, host, process, since when. Held
// until the object or its process dies. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/files/file_system.h"
#include "common/status.h"

namespace keel::checkpoint {

class RunLock {
 public:
  // `who`: "run <id>", or a command. kBusy names whoever has it: at once, or when what a dead
  // holder had forked has not let go of it in ten seconds. `fs` must outlive this.
  static Result<std::unique_ptr<RunLock>> Take(FileSystem& fs, std::string_view who,
                                               const Clock& clock);

  // kBusy when someone else has, or has had, the directory: the lock's file may have been removed
  // and made anew, or a network file system may have given the lock away, and whoever came then has
  // written itself into it, and out of it at its end.
  Status Check() const;

  // The line, by which other ranks know the file; "" when it is not in it.
  std::string line() const { return line_ == holder_ ? holder_ : std::string(); }

 private:
  RunLock(FileSystem& fs, std::string holder, std::shared_ptr<void> lock);

  FileSystem& fs_;
  const std::string holder_;
  const std::shared_ptr<void> lock_;
  int64_t inode_ = 0;  // of the file that is locked
  std::string line_;   // as it was found when the lock was held: the disk may have had no room
};

// On another rank than the one that has the lock: this directory is the same, and this rank may
// write there. Looks again for `grace`, since network file systems show new files late. kConfig
// where the lock's file does not have this line, since each node has a directory of its own of this
// name, and where it cannot be opened for writing, as on a mount that is read-only.
Status SeeLock(FileSystem& fs, std::string_view line, std::chrono::milliseconds grace);

}  // namespace keel::checkpoint
