#include "checkpoint/run/tracker.h"

#include <fmt/format.h>

#include <charconv>
#include <string>

#include "checkpoint/format/names.h"

namespace keel::checkpoint {

Status WriteTracker(FileSystem& fs, int64_t step) {
  return ReplaceFileDurably(fs, kTrackerName, fmt::format("{}\n", step));
}

std::optional<int64_t> ReadTracker(const FileSystem& fs) {
  const Result<std::string> text = ReadFile(fs, kTrackerName, 64);
  if (!text.ok()) return std::nullopt;
  int64_t step = 0;
  const char* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, step);
  if (error != std::errc() || step < 0) return std::nullopt;
  if (stop != end && std::string_view(stop, static_cast<size_t>(end - stop)) != "\n")
    return std::nullopt;
  return step;
}

Status LeadTrackerAwayFrom(FileSystem& fs, int64_t step, int64_t newest, Logger& log) {
  const std::optional<int64_t> named = ReadTracker(fs);
  if (named && *named != step) return Status::Ok();
  // One that cannot be read may name it.
  if (!named && fs.Stat(kTrackerName).status().code() == StatusCode::kNotFound) return Status::Ok();
  const Status written = WriteTracker(fs, newest);
  if (written.ok()) return Status::Ok();
  KEEL_RETURN_IF_ERROR(fs.Remove(kTrackerName));
  KEEL_RETURN_IF_ERROR(fs.SyncDirectory("."));
  log.Warning(
      "{} named step {}, which is to be removed, and cannot be written: it is removed, too, which "
      "resuming does not need, and the next save writes it again ({})",
      kTrackerName, step, written.message());
  return Status::Ok();
}

}  // namespace keel::checkpoint
