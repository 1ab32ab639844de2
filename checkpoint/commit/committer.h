// Committer: makes a save visible in one step, or not at all.
//
// Rank 0 only. A save is built in `.tmp-<step>-<save id>/`; Publish renames it to
// `global_step_<N>/` once everything in it is on the disk. docs/formats/checkpoint.md gives the
// order of operations and what a crash after each of them leaves.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "common/files/file_system.h"
#include "common/log.h"
#include "common/status.h"

namespace keel::checkpoint {

class Committer {
 public:
  // Both must outlive this.
  Committer(FileSystem& fs, Logger& log) : fs_(fs), log_(log) {}

  // Makes the temporary directory and these directories in it ("actor", "actor/model": parents
  // before children); returns its name. Nothing is synced yet: Publish does that, and until then a
  // crash may as well leave nothing.
  Result<std::string> Begin(int64_t step, const std::string& save_id,
                            std::span<const std::string> directories);

  // Writes the manifest as the last file, syncs every directory, renames, syncs the run directory,
  // and opens the step as a reader does. An existing commit of the same step is replaced: the two
  // exchange their names, so that one of them is there at every instant (where the file system
  // cannot do that, the old one is renamed away first), and the old one is removed only when the
  // new one is durable and every byte of it was read back; until then an error, or CollectDebris
  // after a crash, restores it. Set aside under another name (SetAsideDirectory) and kept for good
  // is what may not be removed: a pinned commit, one of another run, one with foreign files, one
  // that is damaged or cannot be read, a directory that is not a checkpoint. After an error nothing
  // of the save is visible.
  Status Publish(const std::string& temporary, const Manifest& manifest,
                 std::span<const std::string> directories);

  // Removes the temporary directory; an error is only logged, the next Open collects it.
  void Abort(const std::string& temporary);

  // Finishes what crashes interrupted: restores what was replaced, or set aside, for a commit that
  // was not published, removes what was replaced by one that verifies, removes temporary and trash
  // directories.
  // Touches only names that prove to be ours, and nothing that is being read.
  Status CollectDebris();
  // Says how much CollectDebris will read, to verify what has replaced something.
  Result<int64_t> BytesToVerify() const;

 private:
  struct Obstacle {
    enum class Kind { kNone, kReplaceable, kToBeKept };
    Kind kind = Kind::kNone;
    std::string kept_because;
  };
  Result<Obstacle> LookForObstacle(const Manifest& successor);
  Result<std::string> TakePlace(const std::string& temporary, const Manifest& manifest);
  Result<std::string> TakeName(const std::string& temporary, const Manifest& manifest,
                               const Obstacle& obstacle);
  Status RenameDurably(const std::string& from, const std::string& to);
  Status MoveAside(const Manifest& successor, const Obstacle& obstacle, std::string* moved_to);
  Status MakeSureOf(const Manifest& manifest, bool replaces);
  Result<std::string> WhyKept(const std::string& directory, const std::string& run_id) const;
  Status RemoveReplaced(const std::string& replaced, const Manifest& successor);
  Status RestoreSetAside(int64_t step, const std::string& save_id);
  Status CollectReplaced(const std::string& replaced, int64_t step, const std::string& save_id);

  FileSystem& fs_;
  Logger& log_;
  std::string withdrawn_;  // a temporary directory that may still turn up as a step
};

}  // namespace keel::checkpoint
