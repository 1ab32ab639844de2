#include "checkpoint/run/lease.h"

#include <fmt/format.h>

#include "checkpoint/format/names.h"

namespace keel::checkpoint {
namespace {

std::string_view KindName(FileKind kind) {
  switch (kind) {
    case FileKind::kFile:
      return "a file";
    case FileKind::kDirectory:
      return "a directory";
    case FileKind::kLink:
      return "a symbolic link, which is never followed";
    case FileKind::kOther:
      break;
  }
  return "a pipe, a socket or a device";
}

// kInvalidData when something else has this name.
Status CheckKind(const FileSystem& fs, std::string_view path, FileKind expected,
                 std::string_view what) {
  const Result<FileInfo> info = fs.Stat(path);
  if (!info.ok() || info->kind == expected) return Status::Ok();
  return Status(StatusCode::kInvalidData, fmt::format("{}: is {}, expected {}", fs.Describe(path),
                                                      KindName(info->kind), what));
}

std::string ManifestIn(std::string_view directory) {
  return fmt::format("{}/{}", directory, kManifestName);
}

Result<Lease> Take(const FileSystem& fs, std::string_view directory, FileSystem::LockMode mode) {
  Result<Lease> lease = fs.LockFile(ManifestIn(directory), mode);
  if (lease.status().code() == StatusCode::kUnavailable) return Lease();
  return lease;
}

}  // namespace

Result<Lease> LeaseForReading(const FileSystem& fs, std::string_view directory) {
  Result<Lease> lease = Take(fs, directory, FileSystem::LockMode::kShared);
  if (lease.status().code() == StatusCode::kBusy) {
    return Status(StatusCode::kNotFound,
                  fmt::format("{}: is being removed", fs.Describe(directory)));
  }
  if (lease.status().code() == StatusCode::kIo) {
    KEEL_RETURN_IF_ERROR(
        CheckKind(fs, directory, FileKind::kDirectory, "the directory of a checkpoint itself"));
    KEEL_RETURN_IF_ERROR(
        CheckKind(fs, ManifestIn(directory), FileKind::kFile, "the manifest of a checkpoint"));
  }
  return lease;
}

Result<Lease> LeaseForRemoval(const FileSystem& fs, std::string_view directory) {
  Result<Lease> lease = Take(fs, directory, FileSystem::LockMode::kExclusive);
  if (lease.status().code() == StatusCode::kBusy) {
    return Status(StatusCode::kBusy, fmt::format("{}: is being read", fs.Describe(directory)));
  }
  if (lease.status().code() == StatusCode::kNotFound) return Lease();
  return lease;
}

}  // namespace keel::checkpoint
