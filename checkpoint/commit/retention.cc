#include "checkpoint/commit/retention.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "checkpoint/format/names.h"
#include "checkpoint/read/step_reader.h"
#include "checkpoint/read/verifier.h"
#include "checkpoint/run/lease.h"
#include "checkpoint/run/pin.h"
#include "checkpoint/run/tracker.h"
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
  // Held until all of it is gone: whoever comes too late to read it is told so.
  KEEL_ASSIGN_OR_RETURN(const Lease lease, LeaseForRemoval(fs, directory));
  if (IsPinned(fs, directory)) {
    return Status(StatusCode::kBusy, fmt::format("{}: has just been pinned", directory));
  }
  const std::string trash = ScratchDirectory(ScratchKind::kTrash, step, save_id);
  KEEL_FAIL_POINT("retain.start");
  KEEL_RETURN_IF_ERROR(fs.Rename(directory, trash, FileSystem::RenameMode::kNoReplace));
  KEEL_FAIL_POINT("retain.renamed");
  KEEL_RETURN_IF_ERROR(fs.SyncDirectory("."));
  KEEL_FAIL_POINT("retain.synced");
  return RemoveTree(fs, trash);
}

namespace {

// The commits of a run, as the rules see them.
struct OwnCommits {
  std::map<int64_t, const CatalogEntry*> by_step;
  std::vector<CommittedStep> committed;
};

OwnCommits CommitsOf(const FileSystem& fs, std::span<const CatalogEntry> entries,
                     const RetentionRequest& request, const std::set<std::string>& damaged) {
  OwnCommits own;
  for (const CatalogEntry& entry : entries) {
    if (!entry.manifest || entry.manifest->run_id != request.run_id) continue;
    const Manifest& manifest = *entry.manifest;
    if (damaged.contains(manifest.save_id)) continue;
    own.by_step.emplace(entry.step, &entry);
    const bool compared = !request.policy.of_other_metric.contains(manifest.save_id);
    own.committed.push_back({entry.step, manifest.sequence,
                             compared ? manifest.metric : std::nullopt,
                             IsPinned(fs, entry.directory)});
  }
  return own;
}

// Trash of passes that could not finish.
void CollectTrash(FileSystem& fs, Logger& log) {
  const Result<std::vector<FileInfo>> names = fs.List(".");
  if (!names.ok()) return;  // the pass itself reports it
  bool synced = false;
  for (const FileInfo& info : *names) {
    const std::optional<Scratch> scratch = ParseScratchDirectory(info.name);
    if (!scratch || scratch->kind != ScratchKind::kTrash || info.kind != FileKind::kDirectory)
      continue;
    // Its renaming may be what failed: a checkpoint must not lose files while a power cut can still
    // bring it back.
    if (!synced && !fs.SyncDirectory(".").ok()) return;
    synced = true;
    if (const Status status = RemoveTree(fs, info.name); !status.ok()) {
      log.Warning("{} could not be removed: {}", fs.Describe(info.name), status.message());
    }
  }
}

// `denied`: it is not known to be damaged, but this process may not read it.
void FoundUnfit(const FileSystem& fs, const CatalogEntry& entry, bool denied,
                const std::string& why, KnownCommits* known, Logger& log) {
  known->damaged.insert(entry.manifest->save_id);
  if (denied) known->denied.insert(entry.manifest->save_id);
  log.Error("{} {}, does not count as a checkpoint, and is left alone: {}",
            fs.Describe(entry.directory), denied ? "cannot be read" : "is damaged", why);
}

// Whether readers can open all of these: manifest, index, every file with its size. Looks once at
// each; stops at one that is damaged, or closed to this process.
bool AllSound(const FileSystem& fs, const std::vector<const CatalogEntry*>& kept,
              KnownCommits* known, Logger& log) {
  for (const CatalogEntry* entry : kept) {
    const std::string& save_id = entry->manifest->save_id;
    if (known->proven.contains(save_id) || known->sound.contains(save_id)) continue;
    const Status status = StepReader::Open(fs, entry->directory).status();
    if (status.ok()) known->sound.insert(save_id);
    if (status.ok() || !IsUnusable(status)) continue;
    FoundUnfit(fs, *entry, status.cause() == StatusCause::kDenied, status.message(), known, log);
    return false;
  }
  return true;
}

// The sequence number of a kept commit that is whole, so that what is older may go. `newest` and
// `oldest` are those of the commits that are to go.
// - A kept commit above `newest` that was proven before serves at once: all of them may go.
// - Else the newest kept one is read and proven now.
// - 0: there is none above `oldest`, so that none of them may go; or it cannot be told now.
// - Nothing: the commit that was to be read is damaged, or closed to this process. It is noted as
//   such, and the caller asks again.
std::optional<int64_t> WholeAbove(FileSystem& fs,
                                  const std::vector<const CatalogEntry*>& kept_newest_first,
                                  const RetentionRequest& request, int64_t oldest, int64_t newest,
                                  KnownCommits* known, Logger& log) {
  for (const CatalogEntry* entry : kept_newest_first) {
    const int64_t sequence = entry->manifest->sequence;
    if (sequence > newest && known->proven.contains(entry->manifest->save_id)) return sequence;
  }
  if (kept_newest_first.empty()) return 0;
  const CatalogEntry& entry = *kept_newest_first.front();
  const std::string& save_id = entry.manifest->save_id;
  if (entry.manifest->sequence < oldest) return 0;
  if (known->proven.contains(save_id)) return entry.manifest->sequence;
  const VerifyReport report = VerifyForRemoval(fs, entry.directory, request.verify_threads);
  if (report.problems.empty()) {
    known->proven.insert(save_id);
    return entry.manifest->sequence;
  }
  // Of what this process may not read it will know no more the next time: the rules go on without.
  const bool denied = report.unproven == StatusCode::kIo;
  if (report.unproven != StatusCode::kOk && !denied) {
    log.Warning("{} could not be verified this time, and nothing is removed: {}",
                fs.Describe(entry.directory), report.problems.front());
    return 0;
  }
  FoundUnfit(fs, entry, denied, report.problems.front(), known, log);
  return std::nullopt;
}

}  // namespace

bool NeedsProof(const FileSystem& fs, std::span<const CatalogEntry> entries,
                const RetentionRequest& request, int64_t step, std::optional<double> metric) {
  auto [kept, committed] = CommitsOf(fs, entries, request, request.known.damaged);
  kept.erase(step);  // which is replaced
  std::erase_if(committed, [&](const CommittedStep& one) { return one.step == step; });
  int64_t newest = 0;
  for (const CommittedStep& one : committed) newest = std::max(newest, one.sequence);
  committed.push_back({step, newest + 1, metric, false});
  int64_t newest_removed = 0;
  for (const int64_t removed : StepsToRemove(committed, request.policy)) {
    newest_removed = std::max(newest_removed, kept.at(removed)->manifest->sequence);
    kept.erase(removed);
  }
  if (newest_removed == 0) return false;
  return std::none_of(kept.begin(), kept.end(), [&](const auto& one) {
    const Manifest& manifest = *one.second->manifest;
    return manifest.sequence > newest_removed && request.known.proven.contains(manifest.save_id);
  });
}

Result<RetentionOutcome> RetainCheckpoints(FileSystem& fs, const RetentionRequest& request,
                                           Logger& log) {
  RetentionOutcome outcome;
  outcome.known = request.known;
  KnownCommits* const known = &outcome.known;
  if (!request.dry_run) CollectTrash(fs, log);
  KEEL_ASSIGN_OR_RETURN(const std::vector<CatalogEntry> entries, ListCheckpoints(fs));

  // 1. What the policy lets go of what there is of this run, and a commit that it keeps and that is
  // whole. Each turn but the last finds one more that is damaged.
  std::map<int64_t, const CatalogEntry*> own;
  std::vector<int64_t> victims;
  std::optional<int64_t> whole;
  int64_t newest = 0;  // step that is kept
  while (!whole) {
    OwnCommits commits = CommitsOf(fs, entries, request, known->damaged);
    own = std::move(commits.by_step);
    victims = StepsToRemove(commits.committed, request.policy);
    if (victims.empty()) return outcome;
    std::vector<const CatalogEntry*> kept;
    for (const CatalogEntry& entry : entries) {  // newest first
      const auto mine = own.find(entry.step);
      const bool goes = std::find(victims.begin(), victims.end(), entry.step) != victims.end();
      if (mine != own.end() && mine->second == &entry && !goes) kept.push_back(&entry);
    }
    if (!AllSound(fs, kept, known, log)) continue;
    newest = kept.front()->step;
    whole = WholeAbove(fs, kept, request, own.at(victims.front())->manifest->sequence,
                       own.at(victims.back())->manifest->sequence, known, log);
  }

  // 2. Remove, the oldest first.
  for (const int64_t step : victims) {
    const CatalogEntry& entry = *own.at(step);
    const auto spare = [&](std::string reason) {
      log.Warning("{} is due to be removed and is left alone: {}", fs.Describe(entry.directory),
                  reason);
      outcome.spared.push_back({step, std::move(reason)});
    };
    if (entry.manifest->sequence >= *whole) {
      spare("no newer checkpoint that is kept could be verified");
      continue;
    }
    const Result<std::vector<std::string>> foreign =
        ForeignEntries(fs, entry.directory, *entry.manifest);
    if (!foreign.ok()) {
      spare(foreign.status().message());
      continue;
    }
    if (!foreign->empty()) {
      spare(fmt::format(
          "it holds '{}'{}, which Keel did not write: move it away", foreign->front(),
          foreign->size() > 1 ? fmt::format(" and {} more", foreign->size() - 1) : std::string()));
      continue;
    }
    if (!request.dry_run) {
      if (const Status status = LeadTrackerAwayFrom(fs, step, newest, log); !status.ok()) {
        spare(fmt::format("{} names it, and can neither be written nor removed: {}", kTrackerName,
                          status.message()));
        continue;
      }
    }
    const Status status =
        request.dry_run ? LeaseForRemoval(fs, entry.directory).status()
                        : RemoveCheckpoint(fs, entry.directory, step, entry.manifest->save_id);
    // Once it is un-published it is gone, whatever is left of it in the trash.
    if (!status.ok() && fs.Stat(entry.directory).status().code() != StatusCode::kNotFound) {
      spare(status.message());
      continue;
    }
    if (!status.ok())
      log.Warning("the removal of step {} is not complete: {}", step, status.message());
    outcome.removed.push_back(step);
  }
  return outcome;
}

}  // namespace keel::checkpoint
