#include "checkpoint/retention.h"

#include <algorithm>
#include <set>

#include "checkpoint/names.h"
#include "common/fail_point.h"

namespace keel::checkpoint {

std::vector<int64_t> StepsToRemove(std::span<const CommittedStep> committed,
                                   const RetentionPolicy& policy) {
  if (!policy.keep_latest || committed.empty()) return {};
  std::vector<CommittedStep> newest_first(committed.begin(), committed.end());
  std::sort(newest_first.begin(), newest_first.end(),
            [](const CommittedStep& a, const CommittedStep& b) { return a.sequence > b.sequence; });
  std::set<int64_t> kept;
  const auto latest = static_cast<size_t>(std::max(1, *policy.keep_latest));
  for (size_t i = 0; i < newest_first.size(); ++i) {
    const CommittedStep& one = newest_first[i];
    const bool periodic = policy.keep_every > 0 && one.step % policy.keep_every == 0;
    if (i < latest || one.pinned || periodic) kept.insert(one.step);
  }
  std::vector<CommittedStep> measured;
  for (const CommittedStep& one : newest_first) {
    if (one.metric) measured.push_back(one);
  }
  // Of equal metrics the newer one is the better one: the sort is stable and starts newest first.
  std::stable_sort(measured.begin(), measured.end(),
                   [&](const CommittedStep& a, const CommittedStep& b) {
                     return policy.higher_is_better ? *a.metric > *b.metric : *a.metric < *b.metric;
                   });
  for (size_t i = 0; i < measured.size() && i < static_cast<size_t>(std::max(0, policy.keep_best));
       ++i) {
    kept.insert(measured[i].step);
  }
  std::vector<int64_t> removed;
  for (auto one = newest_first.rbegin(); one != newest_first.rend(); ++one) {
    if (!kept.contains(one->step)) removed.push_back(one->step);
  }
  return removed;
}

Status RemoveCheckpoint(FileSystem& fs, const std::string& directory, int64_t step,
                        const std::string& save_id) {
  const std::string trash = ScratchDirectory(ScratchKind::kTrash, step, save_id);
  KEEL_FAIL_POINT("retain.start");
  KEEL_RETURN_IF_ERROR(fs.Rename(directory, trash, FileSystem::RenameMode::kNoReplace));
  KEEL_FAIL_POINT("retain.renamed");
  KEEL_RETURN_IF_ERROR(fs.SyncDirectory("."));
  KEEL_FAIL_POINT("retain.synced");
  return RemoveTree(fs, trash);
}

}  // namespace keel::checkpoint
