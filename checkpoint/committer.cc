#include "checkpoint/committer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "checkpoint/names.h"
#include "common/fail_point.h"

namespace keel::checkpoint {
namespace {

constexpr auto kNoReplace = FileSystem::RenameMode::kNoReplace;
constexpr std::string_view kRoot = ".";

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

  // 2. Make way, when something has the name.
  const std::string final_name = StepDirectory(manifest.step);
  std::string moved_to;
  KEEL_RETURN_IF_ERROR(MoveExistingAside(manifest.step, manifest.save_id, &moved_to));

  // 3. The one rename that makes the step visible, and its durability.
  Status status = fs_.Rename(temporary, final_name, kNoReplace);
  if (status.ok()) {
    status = FailPoint("commit.renamed");
    if (status.ok()) status = fs_.SyncDirectory(kRoot);
    if (status.ok()) status = FailPoint("commit.synced");
    if (!status.ok()) (void)fs_.Rename(final_name, temporary, kNoReplace);
  }
  if (!status.ok()) {
    if (!moved_to.empty()) {
      (void)fs_.Rename(moved_to, final_name, kNoReplace);
      (void)fs_.SyncDirectory(kRoot);
    }
    return status;
  }

  // 4. The new one is durable: what it replaced may go.
  if (const auto scratch = ParseScratchDirectory(moved_to);
      scratch && scratch->kind == ScratchKind::kReplaced) {
    const std::string trash =
        ScratchDirectory(ScratchKind::kTrash, manifest.step, manifest.save_id);
    Status removed = fs_.Rename(moved_to, trash, kNoReplace);
    if (removed.ok()) removed = FailPoint("commit.replaced_removed");
    if (removed.ok()) removed = RemoveTree(fs_, trash);
    if (!removed.ok()) {
      log_.Warning("{} was replaced; its earlier version could not be removed: {}", final_name,
                   removed.message());
    }
  }
  return Status::Ok();
}

Status Committer::MoveExistingAside(int64_t step, const std::string& save_id,
                                    std::string* moved_to) {
  const std::string final_name = StepDirectory(step);
  if (const Result<FileInfo> there = fs_.Stat(final_name); !there.ok()) {
    return there.status().code() == StatusCode::kNotFound ? Status::Ok() : there.status();
  }
  const Result<Manifest> manifest = ReadManifest(fs_, final_name);
  std::string target;
  if (manifest.ok()) {
    target = ScratchDirectory(ScratchKind::kReplaced, step, save_id);
    log_.Info("{} exists already (save {}): replacing it", final_name, manifest->save_id);
  } else {
    target = fmt::format("{}.set-aside-{}", final_name, save_id);
    log_.Warning("{} exists and is not a valid checkpoint ({}): kept as {}",
                 fs_.Describe(final_name), manifest.status().message(), target);
  }
  KEEL_FAIL_POINT("commit.aside");
  KEEL_RETURN_IF_ERROR(fs_.Rename(final_name, target, kNoReplace));
  *moved_to = target;
  Status status = fs_.SyncDirectory(kRoot);
  if (status.ok()) status = FailPoint("commit.aside_synced");
  if (!status.ok()) {
    (void)fs_.Rename(target, final_name, kNoReplace);
    return status;
  }
  return Status::Ok();
}

void Committer::Abort(const std::string& temporary) {
  if (const Status status = RemoveTree(fs_, temporary);
      !status.ok() && status.code() != StatusCode::kNotFound) {
    log_.Warning("{} of a failed save could not be removed, the next start will try again: {}",
                 fs_.Describe(temporary), status.message());
  }
}

Status Committer::CollectDebris() {
  KEEL_ASSIGN_OR_RETURN(const std::vector<FileInfo> names, fs_.List(kRoot));
  for (const FileInfo& info : names) {
    const std::optional<Scratch> scratch = ParseScratchDirectory(info.name);
    if (!scratch || info.kind != FileKind::kDirectory) continue;
    if (scratch->kind == ScratchKind::kReplaced) {
      const std::string final_name = StepDirectory(scratch->step);
      const Status restored = fs_.Rename(info.name, final_name, kNoReplace);
      if (restored.ok()) {
        KEEL_RETURN_IF_ERROR(fs_.SyncDirectory(kRoot));
        log_.Warning("{} was being replaced when the last run ended: restored",
                     fs_.Describe(final_name));
        continue;
      }
      if (restored.code() != StatusCode::kAlreadyExists) return restored;
    }
    KEEL_FAIL_POINT("commit.debris");
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

}  // namespace keel::checkpoint
