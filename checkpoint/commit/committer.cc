#include "checkpoint/commit/committer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "checkpoint/format/names.h"
#include "checkpoint/read/step_reader.h"
#include "checkpoint/read/verifier.h"
#include "checkpoint/run/catalog.h"
#include "checkpoint/run/lease.h"
#include "checkpoint/run/pin.h"
#include "common/fail_point.h"
#include "common/guarded.h"
#include "common/text.h"

namespace keel::checkpoint {
namespace {

constexpr auto kNoReplace = FileSystem::RenameMode::kNoReplace;
constexpr auto kExchange = FileSystem::RenameMode::kExchange;
constexpr std::string_view kRoot = ".";

// What can be known of a published step without reading all of it: manifest, index, every file with
// its size.
Status CheckPublished(const FileSystem& fs, const Manifest& manifest) {
  const std::string directory = StepDirectory(manifest.step);
  KEEL_ASSIGN_OR_RETURN(const StepReader reader, StepReader::Open(fs, directory));
  if (reader.manifest().save_id == manifest.save_id) return Status::Ok();
  return Status(StatusCode::kDataLoss,
                fmt::format("{} is of save {}, expected {}", fs.Describe(directory),
                            reader.manifest().save_id, manifest.save_id));
}

// What ReplaceFileDurably leaves of the tracker when it is interrupted.
bool IsHalfWrittenText(const FileInfo& info) {
  return info.kind == FileKind::kFile && info.name == ReplacementOf(kTrackerName);
}

}  // namespace

Result<std::string> Committer::Begin(int64_t step, const std::string& save_id,
                                     std::span<const std::string> directories) {
  const std::string temporary = ScratchDirectory(ScratchKind::kTemporary, step, save_id);
  KEEL_FAIL_POINT("commit.begin");
  KEEL_RETURN_IF_ERROR(fs_.MakeDirectory(temporary));
  for (const std::string& directory : directories) {
    if (Status status = fs_.MakeDirectory(fmt::format("{}/{}", temporary, directory));
        !status.ok()) {
      Abort(temporary);
      return status;
    }
  }
  return temporary;
}

Status Committer::Publish(const std::string& temporary, const Manifest& manifest,
                          std::span<const std::string> directories) {
  // 1. The manifest is the last file; then the names of all files.
  KEEL_RETURN_IF_ERROR(
      WriteFileDurably(fs_, fmt::format("{}/{}", temporary, kManifestName), manifest.Serialize()));
  KEEL_FAIL_POINT("commit.manifest");
  std::vector<std::string> deepest_first(directories.begin(), directories.end());
  std::sort(deepest_first.rbegin(), deepest_first.rend());
  for (const std::string& directory : deepest_first) {
    KEEL_RETURN_IF_ERROR(fs_.SyncDirectory(fmt::format("{}/{}", temporary, directory)));
  }
  KEEL_RETURN_IF_ERROR(fs_.SyncDirectory(temporary));
  KEEL_FAIL_POINT("commit.directories_synced");

  // 2. The one rename that makes the step visible. Whatever goes wrong with what is visible then
  // takes it back.
  KEEL_ASSIGN_OR_RETURN(const Obstacle obstacle, LookForObstacle(manifest));
  Result<std::string> replaced = obstacle.kind == Obstacle::Kind::kReplaceable
                                     ? TakePlace(temporary, manifest)
                                     : Status(StatusCode::kUnavailable, "nothing to exchange");
  if (replaced.status().code() == StatusCode::kUnavailable)
    replaced = TakeName(temporary, manifest, obstacle);
  KEEL_RETURN_IF_ERROR(replaced.status());

  // 3. What it replaced may go.
  if (obstacle.kind != Obstacle::Kind::kReplaceable) return Status::Ok();
  const Status removed = Guarded([&] { return RemoveReplaced(*replaced, manifest); });
  if (!removed.ok()) {
    log_.Warning(
        "{} was replaced; its earlier version could not be removed, the next start will try again: "
        "{}",
        StepDirectory(manifest.step), removed.message());
  }
  return Status::Ok();
}

// Exchanges the names of the step and of its earlier version: at every instant one of them is
// there. Returns where the earlier one is. kUnavailable, and nothing done, where names cannot be
// exchanged.
Result<std::string> Committer::TakePlace(const std::string& temporary, const Manifest& manifest) {
  const std::string final_name = StepDirectory(manifest.step);
  const std::string aside =
      ScratchDirectory(ScratchKind::kReplaced, manifest.step, manifest.save_id);
  // Where the disk has not taken back a name, a power cut may bring it back, and then what has it
  // must be whole.
  const auto end = [&](const Status& cause) {
    if (!fs_.SyncDirectory(kRoot).ok()) withdrawn_ = temporary;
    return cause;
  };
  Status status = RenameDurably(temporary, aside);
  if (!status.ok()) return end(status);
  status = fs_.Rename(aside, final_name, kExchange);
  if (status.ok()) {
    status = Guarded([&] { return MakeSureOf(manifest, true); });
    if (status.ok()) return aside;
    // One name after the other, or a power cut may leave the new one under both. What stays aside
    // is for the next start.
    if (!fs_.Rename(aside, final_name, kExchange).ok() || !fs_.SyncDirectory(kRoot).ok())
      return status;
  }
  (void)fs_.Rename(aside, temporary, kNoReplace);
  return end(status);
}

// The same where nothing has the name, or what has it is renamed first. Returns where that is.
Result<std::string> Committer::TakeName(const std::string& temporary, const Manifest& manifest,
                                        const Obstacle& obstacle) {
  const std::string final_name = StepDirectory(manifest.step);
  std::string moved_to;
  KEEL_RETURN_IF_ERROR(MoveAside(manifest, obstacle, &moved_to));
  bool renamed = false;
  const auto undo = [&](const Status& cause) {
    if (renamed) (void)fs_.Rename(final_name, temporary, kNoReplace);
    if (!moved_to.empty()) (void)fs_.Rename(moved_to, final_name, kNoReplace);
    // Until the disk has taken back the name, a power cut may bring the step back, and then it must
    // be whole: nothing in it may be removed.
    if ((renamed || !moved_to.empty()) && !fs_.SyncDirectory(kRoot).ok() && renamed)
      withdrawn_ = temporary;
    return cause;
  };
  Status status = fs_.Rename(temporary, final_name, kNoReplace);
  if (!status.ok()) return undo(status);
  renamed = true;
  status =
      Guarded([&] { return MakeSureOf(manifest, obstacle.kind == Obstacle::Kind::kReplaceable); });
  if (!status.ok()) return undo(status);
  return moved_to;
}

// A step that has just got its name: that it is durable, and that readers can open it; of one that
// takes an earlier version's place, every byte.
Status Committer::MakeSureOf(const Manifest& manifest, bool replaces) {
  KEEL_FAIL_POINT("commit.renamed");
  KEEL_RETURN_IF_ERROR(fs_.SyncDirectory(kRoot));
  KEEL_FAIL_POINT("commit.synced");
  KEEL_RETURN_IF_ERROR(
      CheckPublished(fs_, manifest).WithContext("it does not verify right after its commit"));
  if (!replaces) return Status::Ok();
  const std::string directory = StepDirectory(manifest.step);
  const VerifyReport report = VerifyCheckpoint(fs_, directory, 1, true);
  if (report.problems.empty()) return Status::Ok();
  return Status(StatusCode::kDataLoss,
                fmt::format("{}: read back before its earlier version was to be removed, which is "
                            "restored: {}",
                            directory, report.problems.front()));
}

// Why a commit that run `run_id` replaces is not removed; "" when it may be. It was looked at
// before it gave way, but only all of its bytes tell whether it is damaged, and much may have
// happened since. kExhausted where this process lacks what it takes to tell.
Result<std::string> Committer::WhyKept(const std::string& directory,
                                       const std::string& run_id) const {
  const VerifyReport report = VerifyForRemoval(fs_, directory, 1);
  Result<Manifest> manifest = ReadManifest(fs_, directory);
  if (!manifest.ok()) manifest = ReadManifest(fs_, directory);  // a disk may fail once
  if (manifest.status().code() == StatusCode::kExhausted) return manifest.status();
  if (report.unproven == StatusCode::kExhausted)
    return Status(StatusCode::kExhausted, "it cannot be looked at now: " + report.problems.front());
  if (!manifest.ok() && !IsUnusable(manifest.status()))
    return "cannot be read: " + manifest.status().message();
  if (!report.problems.empty())
    return (report.unproven != StatusCode::kOk ? "cannot be read: " : "is damaged: ") +
           report.problems.front();
  KEEL_RETURN_IF_ERROR(manifest.status());
  if (manifest->run_id != run_id) return "is of another run, " + Printable(manifest->run_id);
  KEEL_ASSIGN_OR_RETURN(const std::vector<std::string> foreign,
                        ForeignEntries(fs_, directory, *manifest));
  if (foreign.empty()) return std::string();
  return fmt::format("holds '{}', which Keel did not write", foreign.front());
}

Status Committer::RemoveReplaced(const std::string& replaced, const Manifest& successor) {
  const int64_t step = successor.step;
  KEEL_ASSIGN_OR_RETURN(std::string kept_because, WhyKept(replaced, successor.run_id));
  Lease lease;
  if (kept_because.empty()) {
    KEEL_ASSIGN_OR_RETURN(lease, LeaseForRemoval(fs_, replaced));
    KEEL_ASSIGN_OR_RETURN(const bool pinned, LookForPin(fs_, replaced));
    if (pinned) kept_because = "was pinned while it was replaced";  // since it was looked for
  }
  if (!kept_because.empty()) {
    const std::string kept = SetAsideDirectory(step, successor.save_id);
    log_.Warning("another version of {} {}: kept as {}, which nothing removes", StepDirectory(step),
                 kept_because, fs_.Describe(kept));
    KEEL_RETURN_IF_ERROR(fs_.Rename(replaced, kept, kNoReplace));
    return fs_.SyncDirectory(kRoot);
  }
  const std::string trash = ScratchDirectory(ScratchKind::kTrash, step, successor.save_id);
  KEEL_RETURN_IF_ERROR(fs_.Rename(replaced, trash, kNoReplace));
  // Else a power cut may bring the name back with a part of the files, which would pass for damage.
  KEEL_RETURN_IF_ERROR(fs_.SyncDirectory(kRoot));
  KEEL_FAIL_POINT("commit.replaced_removed");
  return RemoveTree(fs_, trash);
}

// What has the name that a step is to get.
Result<Committer::Obstacle> Committer::LookForObstacle(const Manifest& successor) {
  const std::string final_name = StepDirectory(successor.step);
  const Result<FileInfo> there = fs_.Stat(final_name);
  if (there.status().code() == StatusCode::kNotFound) return Obstacle();
  KEEL_RETURN_IF_ERROR(there.status());
  const bool directory = there->kind == FileKind::kDirectory;
  const Result<Manifest> manifest = directory
                                        ? ReadManifest(fs_, final_name)
                                        : Status(StatusCode::kInvalidData, "it is no directory");
  // What cannot be read this time may be a good checkpoint, of this run or of another: it keeps its
  // name until the new one has proven itself, and is set aside then.
  const auto unread = [&](const Status& status) {
    log_.Warning("{} exists and cannot be read: {}", fs_.Describe(final_name), status.message());
    return Obstacle{Obstacle::Kind::kReplaceable, {}};
  };
  if (!manifest.ok() && !IsUnusable(manifest.status())) return unread(manifest.status());
  const auto keep = [](std::string why) {
    return Obstacle{Obstacle::Kind::kToBeKept, std::move(why)};
  };
  if (!manifest.ok())
    return keep(fmt::format("is not a valid checkpoint ({})", manifest.status().message()));
  if (manifest->run_id != successor.run_id)
    return keep(fmt::format("is of another run ({})", Printable(manifest->run_id)));
  KEEL_ASSIGN_OR_RETURN(const bool pinned, LookForPin(fs_, final_name));
  if (pinned) return keep("is pinned");
  const auto foreign = ForeignEntries(fs_, final_name, *manifest);
  if (!foreign.ok()) return unread(foreign.status());
  if (!foreign->empty())
    return keep(fmt::format("holds '{}', which Keel did not write", foreign->front()));
  log_.Info("{} exists already (save {}): replacing it", final_name, manifest->save_id);
  return Obstacle{Obstacle::Kind::kReplaceable, {}};
}

Status Committer::MoveAside(const Manifest& successor, const Obstacle& obstacle,
                            std::string* moved_to) {
  if (obstacle.kind == Obstacle::Kind::kNone) return Status::Ok();
  const std::string final_name = StepDirectory(successor.step);
  std::string target = ScratchDirectory(ScratchKind::kReplaced, successor.step, successor.save_id);
  if (obstacle.kind == Obstacle::Kind::kToBeKept) {
    target = SetAsideDirectory(successor.step, successor.save_id);
    log_.Warning("{} exists and {}: kept as {}", fs_.Describe(final_name), obstacle.kept_because,
                 target);
  }
  KEEL_RETURN_IF_ERROR(RenameDurably(final_name, target));
  *moved_to = target;
  return Status::Ok();
}

// On the disk when it returns, or as it was.
Status Committer::RenameDurably(const std::string& from, const std::string& to) {
  KEEL_FAIL_POINT("commit.aside");
  KEEL_RETURN_IF_ERROR(fs_.Rename(from, to, kNoReplace));
  const Status status = Guarded([&]() -> Status {
    KEEL_RETURN_IF_ERROR(fs_.SyncDirectory(kRoot));
    return FailPoint("commit.aside_synced");
  });
  if (!status.ok()) (void)fs_.Rename(to, from, kNoReplace);
  return status;
}

void Committer::Abort(const std::string& temporary) {
  if (temporary == withdrawn_) {
    log_.Warning("{} of a failed save is left until the next start, since {} cannot be synced",
                 temporary, fs_.Describe(kRoot));
    return;
  }
  if (const Status status = RemoveTree(fs_, temporary);
      !status.ok() && status.code() != StatusCode::kNotFound) {
    log_.Warning("{} of a failed save could not be removed, the next start will try again: {}",
                 fs_.Describe(temporary), status.message());
  }
}

Result<int64_t> Committer::BytesToVerify() const {
  KEEL_ASSIGN_OR_RETURN(const std::vector<FileInfo> names, fs_.List(kRoot));
  int64_t bytes = 0;
  for (const FileInfo& info : names) {
    const std::optional<Scratch> scratch = ParseScratchDirectory(info.name);
    if (!scratch || scratch->kind != ScratchKind::kReplaced) continue;
    for (const std::string& directory : {StepDirectory(scratch->step), info.name}) {
      const Result<Manifest> manifest = ReadManifest(fs_, directory);
      if (manifest.ok()) bytes += manifest->TotalBytes();
    }
  }
  return bytes;
}

Status Committer::CollectDebris() {
  KEEL_ASSIGN_OR_RETURN(const std::vector<FileInfo> names, fs_.List(kRoot));
  // What the last run renamed and did not sync may have its old name again after a power cut: that
  // must be settled before anything is removed that could then be missed.
  if (std::any_of(names.begin(), names.end(),
                  [](const FileInfo& info) { return ParseScratchDirectory(info.name); })) {
    KEEL_RETURN_IF_ERROR(fs_.SyncDirectory(kRoot));
  }
  for (const FileInfo& info : names) {
    if (IsHalfWrittenText(info)) {
      if (const Status status = fs_.Remove(info.name); !status.ok()) {
        log_.Warning("{}, left by an interrupted run, could not be removed: {}",
                     fs_.Describe(info.name), status.message());
      }
      continue;
    }
    const std::optional<Scratch> scratch = ParseScratchDirectory(info.name);
    if (!scratch || info.kind != FileKind::kDirectory) continue;
    if (scratch->kind == ScratchKind::kReplaced) {
      KEEL_RETURN_IF_ERROR(CollectReplaced(info.name, scratch->step, scratch->save_id));
      continue;
    }
    KEEL_FAIL_POINT("commit.debris");
    if (scratch->kind == ScratchKind::kTemporary)
      KEEL_RETURN_IF_ERROR(RestoreSetAside(scratch->step, scratch->save_id));
    std::string doomed = info.name;
    if (scratch->kind != ScratchKind::kTrash) {
      const std::string trash =
          ScratchDirectory(ScratchKind::kTrash, scratch->step, scratch->save_id);
      if (fs_.Rename(doomed, trash, kNoReplace).ok()) doomed = trash;
    }
    if (const Status status = RemoveTree(fs_, doomed); !status.ok()) {
      log_.Warning("{}, left by an interrupted run, could not be removed: {}", fs_.Describe(doomed),
                   status.message());
    } else {
      log_.Info("removed {}, left by an interrupted run", fs_.Describe(info.name));
    }
  }
  return Status::Ok();
}

// What a save had moved out of its way, and then did not get to take the place of.
Status Committer::RestoreSetAside(int64_t step, const std::string& save_id) {
  const std::string final_name = StepDirectory(step);
  const Status restored = fs_.Rename(SetAsideDirectory(step, save_id), final_name, kNoReplace);
  if (restored.code() == StatusCode::kNotFound || restored.code() == StatusCode::kAlreadyExists)
    return Status::Ok();
  KEEL_RETURN_IF_ERROR(restored);
  log_.Warning("{} was set aside for a save that did not end: restored", fs_.Describe(final_name));
  return fs_.SyncDirectory(kRoot);
}

Status Committer::CollectReplaced(const std::string& replaced, int64_t step,
                                  const std::string& save_id) {
  const std::string final_name = StepDirectory(step);
  const Status restored = fs_.Rename(replaced, final_name, kNoReplace);
  if (restored.ok()) {
    log_.Warning("{} was being replaced when the last run ended: restored",
                 fs_.Describe(final_name));
    return fs_.SyncDirectory(kRoot);
  }
  if (restored.code() != StatusCode::kAlreadyExists) return restored;
  if (const VerifyReport report = VerifyCheckpoint(fs_, final_name, 1, true);
      !report.problems.empty()) {
    if (report.unproven == StatusCode::kExhausted) {
      log_.Warning("{}: not known whether {} may go, the next start will try again: {}",
                   fs_.Describe(final_name), replaced, report.problems.front());
      return Status::Ok();
    }
    log_.Error(
        "{} is damaged: {}. Another version of it, whose save did not end, is kept as {}: rename "
        "that to {} to take it instead",
        fs_.Describe(final_name), report.problems.front(), replaced, final_name);
    return Status::Ok();
  }
  KEEL_ASSIGN_OR_RETURN(Manifest successor, ReadManifest(fs_, final_name));
  successor.save_id = save_id;  // of the save that was to replace it
  if (const Status removed = RemoveReplaced(replaced, successor); !removed.ok()) {
    log_.Warning("{}, replaced by {}, could not be removed, the next start will try again: {}",
                 fs_.Describe(replaced), final_name, removed.message());
  }
  return Status::Ok();
}

}  // namespace keel::checkpoint
