// Retention: which committed checkpoints may go, and their removal.
//
// Derived from the disk at every pass, so that a restart forgets nothing: manifests say what there
// is, pins what stays. Rank 0's commit thread and `keel ckpt prune` call the same function, under
// the run directory's lock. docs/formats/checkpoint.md lists what is never touched.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/base/requests.h"
#include "checkpoint/run/catalog.h"
#include "common/files/file_system.h"
#include "common/log.h"
#include "common/status.h"

namespace keel::checkpoint {

struct CommittedStep {
  int64_t step = 0;
  int64_t sequence = 0;  // order of commits; see Manifest
  std::optional<double> metric;
  bool pinned = false;
};

// The steps to remove, oldest commit first. The newest commit is never among them.
std::vector<int64_t> StepsToRemove(std::span<const CommittedStep> committed,
                                   const RetentionPolicy& policy);

// What a process has found out about commits, by save id.
struct KnownCommits {
  std::set<std::string> proven;   // every byte was read back since they were written
  std::set<std::string> sound;    // manifest, index, and every file with its size were there
  // Damaged, or closed to this process: they do not count as kept, and do not go.
  std::set<std::string> damaged;
  std::set<std::string> denied;  // those of them that are closed to this process
};

struct RetentionRequest {
  RetentionPolicy policy;
  std::string run_id;  // checkpoints of other runs neither count nor go
  KnownCommits known;
  int verify_threads = 1;
  bool dry_run = false;  // finds out, verifies, removes nothing
};

struct RetentionOutcome {
  struct Spared {
    int64_t step = 0;
    std::string reason;
  };
  std::vector<int64_t> removed;  // oldest commit first; in a dry run those that would go
  std::vector<Spared> spared;    // the policy lets them go, but something else keeps them
  KnownCommits known;            // the request's, and what this pass has found
};

// One pass. Damaged commits neither count nor go: when any of those that would be kept is found to
// be one, the policy is asked again without it. A checkpoint goes only when a commit that is newer
// than it, and kept, has every byte verified: one that is proven, or, where none of these is newer
// than all that are to go, one that this reads in full, the newest first. Left alone are pinned
// checkpoints, those being read, those with a foreign file in them, and everything that is not a
// checkpoint of this run. Leftovers of removals that failed are collected. An error means that the
// directory could not be read; whatever fails later spares one checkpoint and is logged.
Result<RetentionOutcome> RetainCheckpoints(FileSystem& fs, const RetentionRequest& request,
                                           Logger& log);

// Says whether a pass after the commit of `step` would find no commit that it keeps, newer than
// what it removes, and proven. Then this one is read back by all ranks at once before it is
// published: retention, on rank 0 alone, would take longer. `entries`: what is there before.
bool NeedsProof(const FileSystem& fs, std::span<const CatalogEntry> entries,
                const RetentionRequest& request, int64_t step, std::optional<double> metric);

// Un-publishes `directory` of `step` by renaming it to a trash name, syncs the run directory, then
// deletes. A crash or an error on the way leaves a trash directory, which the next pass or the next
// start collects. kBusy, and nothing done, while someone reads it.
Status RemoveCheckpoint(FileSystem& fs, const std::string& directory, int64_t step,
                        const std::string& save_id);

}  // namespace keel::checkpoint
