// SaveRecord and LoadRecord: seconds and bytes of one save or load, as checkpoints.jsonl has them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/json.h"

namespace keel::checkpoint {

// What one rank did of a save.
struct RankRecord {
  int64_t bytes = 0;
  double staged_s = 0;   // until the state was copied, and free to change
  double written_s = 0;  // until all was written, without fsync
  double fsync_s = 0;
};

// Everything is this rank's, unless said otherwise. The stages overlap: they do not add up to the
// total.
struct SaveRecord {
  int64_t step = 0;
  std::string save_id;
  bool async = false;
  int64_t bytes = 0;
  int64_t total_bytes = 0;      // of all ranks
  int64_t predicted_bytes = 0;  // of all ranks, before anything was written
  double planned_s = 0;
  double blocked_s = 0;  // the training thread stood still for the save
  double fence_s = 0;    // of these, before state was overwritten that was not copied yet
  double staged_s = 0, written_s = 0, fsync_s = 0;
  double commit_s = 0;    // rank 0: index, manifest, rename
  double verified_s = 0;  // rank 0: reading back
  double total_s = 0;
  double expected_s = 0;  // what rank 0 measured until the commit: the same on every rank
  double lost_s = -1;     // step time that training lost to the save, when the caller measured it
  std::string io;         // back-end used
  std::vector<int64_t> removed;   // steps that retention removed after this commit
  std::vector<RankRecord> ranks;  // rank 0: everyone's
  Json ToJson() const;
};

struct SkippedCheckpoint {
  std::string directory;
  std::string reason;
};

struct LoadRecord {
  int64_t step = 0;
  std::string directory;
  int64_t bytes = 0;     // read from files by this rank
  int64_t received = 0;  // bytes that it got from other ranks
  double planned_s = 0, read_s = 0, verified_s = 0, applied_s = 0, total_s = 0;
  std::vector<SkippedCheckpoint> skipped;  // newer ones that were not usable, and why
  // Of rank 0, what allow_missing has let be, "scope:tensor" or a role: what the checkpoint lacks,
  // whose values stayed as they were, and what only the checkpoint has.
  std::vector<std::string> kept;
  std::vector<std::string> left_out;
  std::map<std::string, std::string> documents;  // path -> content
  Json manifest;
  Json ToJson() const;
};

}  // namespace keel::checkpoint
