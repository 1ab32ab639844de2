#include "checkpoint/hf/whole_directory.h"

#include <fmt/format.h>

#include <optional>
#include <random>
#include <string_view>
#include <vector>

#include "checkpoint/format/names.h"
#include "checkpoint/run/lease.h"
#include "common/fail_point.h"
#include "common/guarded.h"

namespace keel::checkpoint {
namespace {

// A directory NAME is made in `.NAME.<save id>.partial` and then renamed. The file
// `.NAME.<save id>.lock`, there before it and after it, is locked for as long as someone writes.
constexpr std::string_view kLockEnd = ".lock";
constexpr std::string_view kPartialEnd = ".partial";

// The save id of one of these names; nothing for names that we did not make.
std::optional<std::string_view> IdIn(std::string_view entry, std::string_view name) {
  const std::string begin = fmt::format(".{}.", name);
  if (!entry.starts_with(begin)) return std::nullopt;
  entry.remove_prefix(begin.size());
  const std::string_view id = entry.substr(0, entry.find('.'));
  const std::string_view end = entry.substr(id.size());
  if (!IsSaveId(id) || (end != kLockEnd && end != kPartialEnd)) return std::nullopt;
  return id;
}

std::string ScratchOf(std::string_view name, std::string_view id, std::string_view end) {
  return fmt::format(".{}.{}{}", name, id, end);
}

// Removes what earlier calls for `name` left when they were killed.
void CollectPartials(FileSystem& out, std::string_view name, Logger& log) {
  const Result<std::vector<FileInfo>> entries = out.List(".");
  if (!entries.ok()) return;
  for (const FileInfo& info : *entries) {  // of an id the lock first
    const std::optional<std::string_view> id = IdIn(info.name, name);
    if (!id || (info.kind != FileKind::kFile && info.kind != FileKind::kDirectory)) continue;
    const auto lock =
        out.LockFile(ScratchOf(name, *id, kLockEnd), FileSystem::LockMode::kExclusive);
    // Otherwise someone writes there, or that cannot be told.
    if (!lock.ok() && lock.status().code() != StatusCode::kNotFound) continue;
    if (const Status status = RemoveTree(out, info.name); !status.ok()) {
      log.Warning("{}, left by an interrupted command, could not be removed: {}",
                  out.Describe(info.name), status.message());
    }
  }
}

// Held while a directory is written. Null where the file system knows no locks; nobody collects
// there.
Result<Lease> TakeLock(FileSystem& out, const std::string& path) {
  KEEL_RETURN_IF_ERROR(out.Create(path, {}).status());
  Result<Lease> lock = out.LockFile(path, FileSystem::LockMode::kExclusive);
  if (lock.status().code() == StatusCode::kUnavailable) return Lease();
  KEEL_RETURN_IF_ERROR(lock.status());
  // Collected before it was locked, it would say nothing to anyone.
  KEEL_RETURN_IF_ERROR(out.Stat(path).status());
  return lock;
}

}  // namespace

Status MakeWholeDirectory(FileSystem& out, const std::string& name, const std::string& what,
                          Logger& log, const std::function<Status(const std::string&)>& fill) {
  CollectPartials(out, name, log);
  if (out.Stat(name).ok()) {
    return Status(StatusCode::kAlreadyExists,
                  fmt::format("{}: exists; {} does not overwrite", out.Describe(name), what));
  }
  std::random_device entropy;
  const std::string id = MakeSaveId((uint64_t{entropy()} << 32) | entropy());
  const std::string lock = ScratchOf(name, id, kLockEnd);
  const std::string temporary = ScratchOf(name, id, kPartialEnd);
  Lease held;
  const auto build = [&]() -> Status {
    KEEL_ASSIGN_OR_RETURN(held, TakeLock(out, lock));
    KEEL_RETURN_IF_ERROR(out.MakeDirectory(temporary));
    KEEL_FAIL_POINT("export.begin");
    KEEL_RETURN_IF_ERROR(fill(temporary));
    KEEL_RETURN_IF_ERROR(out.SyncDirectory(temporary));
    KEEL_FAIL_POINT("export.synced");
    KEEL_RETURN_IF_ERROR(out.Rename(temporary, name, FileSystem::RenameMode::kNoReplace));
    const Status durable = Guarded([&]() -> Status {
      KEEL_FAIL_POINT("export.renamed");
      return out.SyncDirectory(".");
    });
    if (!durable.ok()) (void)out.Rename(name, temporary, FileSystem::RenameMode::kNoReplace);
    return durable;
  };
  const Status status = Guarded(build);
  if (!status.ok()) (void)RemoveTree(out, temporary);
  (void)out.Remove(lock);
  return status;
}

}  // namespace keel::checkpoint
