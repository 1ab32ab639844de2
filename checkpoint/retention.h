// Retention: which committed checkpoints may go. A pure policy, and the removal of one checkpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/file_system.h"
#include "common/status.h"

namespace keel::checkpoint {

// What is kept is the union of all rules. Without `keep_latest` nothing is ever removed.
struct RetentionPolicy {
  std::optional<int> keep_latest;  // >= 1: that many newest commits
  int keep_best = 0;               // that many by metric
  bool higher_is_better = false;
  int64_t keep_every = 0;  // steps that are multiples of it; 0: no such rule
};

struct CommittedStep {
  int64_t step = 0;
  int64_t sequence = 0;  // order of commits; see Manifest
  std::optional<double> metric;
  bool pinned = false;
};

// The steps to remove, oldest commit first. The newest commit is never among them.
std::vector<int64_t> StepsToRemove(std::span<const CommittedStep> committed,
                                   const RetentionPolicy& policy);

// Un-publishes `directory` of `step` by renaming it to a trash name, syncs the run directory, then
// deletes. A crash or an error on the way leaves a trash directory, which the next Open collects.
Status RemoveCheckpoint(FileSystem& fs, const std::string& directory, int64_t step,
                        const std::string& save_id);

}  // namespace keel::checkpoint
