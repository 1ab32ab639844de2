#include "checkpoint/run/pin.h"

#include <fmt/format.h>

#include "checkpoint/format/manifest.h"
#include "checkpoint/format/names.h"
#include "checkpoint/run/lease.h"

namespace keel::checkpoint {
namespace {

std::string PinPath(std::string_view directory) {
  return fmt::format("{}/{}", directory, kPinName);
}

}  // namespace

bool IsPinned(const FileSystem& fs, std::string_view directory) {
  const Result<bool> pin = LookForPin(fs, directory);
  return !pin.ok() || *pin;
}

Result<bool> LookForPin(const FileSystem& fs, std::string_view directory) {
  const Status status = fs.Stat(PinPath(directory)).status();
  if (status.ok()) return true;
  if (status.code() == StatusCode::kNotFound) return false;
  return status;
}

Status PinCheckpoint(FileSystem& fs, std::string_view directory, const Clock& clock) {
  // With the lease nobody can be between looking for a pin and removing the checkpoint.
  KEEL_ASSIGN_OR_RETURN(const Lease lease, LeaseForReading(fs, directory));
  KEEL_RETURN_IF_ERROR(ReadManifest(fs, directory).status());
  const Status written = WriteFileDurably(fs, PinPath(directory), FormatUtc(clock.Wall()) + "\n");
  if (!written.ok() && written.code() != StatusCode::kAlreadyExists) {
    // Whoever hears that it failed does not count on it, nor on the room that it would take.
    (void)fs.Remove(PinPath(directory));
    return written;
  }
  return fs.SyncDirectory(directory);
}

Status UnpinCheckpoint(FileSystem& fs, std::string_view directory) {
  const bool there = fs.Stat(fmt::format("{}/{}", directory, kManifestName)).ok();
  if (!there) {
    KEEL_RETURN_IF_ERROR(LeaseForReading(fs, directory).status());  // says what is there instead
    return ReadManifest(fs, directory).status();
  }
  const Status removed = fs.Remove(PinPath(directory));
  if (!removed.ok() && removed.code() != StatusCode::kNotFound) return removed;
  return fs.SyncDirectory(directory);
}

}  // namespace keel::checkpoint
