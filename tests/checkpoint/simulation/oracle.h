// Oracle: what was saved, what was promised, and whether a disk holds it.
//
// Knows nothing of the protocol. Whether a directory is a whole checkpoint it decides by comparing
// all of it with what was there when that save became visible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/checkpoint/support/sim_file_system.h"

namespace keel::checkpoint::testing {

class Oracle {
 public:
  // `keep`: checkpoints that retention leaves; 0 for all.
  explicit Oracle(int keep) : keep_(keep) {}

  // A save of `step` begins; returns the number that stands for its content.
  int64_t Begin(int64_t step);
  int64_t step_of(int64_t content) const { return saves_.at(static_cast<size_t>(content)).step; }
  bool published(int64_t content) const {
    return saves_.at(static_cast<size_t>(content)).published;
  }
  // A rank was told that it is saved.
  void Acknowledge(int64_t content);
  int keep() const { return keep_; }

  // All of the following return what is wrong, or "".

  // At any instant: what is visible is whole; the newest `keep` promised saves are there; the
  // tracker names a step that was committed. `live`: saves may become visible; otherwise the disk
  // is one after a power cut.
  std::string CheckDisk(const SimFileSystem& disk, bool live);
  // After a start: nothing is left that is not a checkpoint or of the run directory.
  // `disk_failed`: at any time. What could not be read then, when a save took its place, is kept.
  std::string CheckNoDebris(const SimFileSystem& disk, bool disk_failed) const;
  // A start chose this one, or nothing (-1). `excused`: reads failed, so an older one may do.
  std::string CheckChosen(int64_t content, bool excused) const;

 private:
  struct Save {
    int64_t step = 0;
    bool published = false;
    bool promised = false;
    uint64_t digest = 0;  // of its directory, when it became visible
  };
  std::string Publish(const SimFileSystem& disk, const std::string& directory, uint64_t digest);
  bool Holds(const std::vector<int64_t>& order, const std::map<int64_t, bool>& there) const;
  std::vector<int64_t> Unpromised() const;

  const int keep_;
  std::vector<Save> saves_;  // by content
  std::map<uint64_t, int64_t> by_digest_;
  std::vector<int64_t> published_;  // contents in the order of becoming visible
  std::vector<int64_t> promised_;   // contents in the order of their commits
  std::vector<int64_t> visible_;    // contents of the steps that the last live disk showed
};

}  // namespace keel::checkpoint::testing
