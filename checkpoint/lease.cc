#include "checkpoint/lease.h"

#include <fmt/format.h>

#include "checkpoint/names.h"

namespace keel::checkpoint {
namespace {

Result<Lease> Take(const FileSystem& fs, std::string_view directory, FileSystem::LockMode mode) {
  Result<Lease> lease = fs.LockFile(fmt::format("{}/{}", directory, kManifestName), mode);
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
