#include "checkpoint/save/backend_choice.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace keel::checkpoint {
namespace {

// Below this a measurement would cost more than the choice of a back-end can save.
constexpr int64_t kMeasureFrom = int64_t{16} << 20;
constexpr int64_t kMeasureBytes = int64_t{16} << 20;

// Nothing: the fastest.
std::optional<IoBackend> BackendOf(IoChoice choice) {
  switch (choice) {
    case IoChoice::kAuto:
      break;
    case IoChoice::kBuffered:
      return IoBackend::kBuffered;
    case IoChoice::kDirect:
      return IoBackend::kDirect;
    case IoChoice::kIoUring:
      return IoBackend::kIoUring;
  }
  return std::nullopt;
}

}  // namespace

BackendChoice::BackendChoice(FileSystem& fs, IoChoice wanted, std::string_view setting, int rank,
                             Logger& log)
    : fs_(fs), wanted_(BackendOf(wanted)), setting_(setting), rank_(rank), log_(log) {}

IoBackend BackendChoice::Unmeasured() const { return wanted_.value_or(IoBackend::kBuffered); }

IoBackend BackendChoice::Choose(int64_t largest_rank_bytes, const std::string& directory) {
  if (wanted_) return *wanted_;
  if (measured_) return *measured_;
  if (largest_rank_bytes < kMeasureFrom) {
    if (!std::exchange(said_small_, true)) {
      log_.Info(
          "checkpoints are written by the buffered back-end: {:.1f} MiB a rank at most are "
          "too few to measure which one is the fastest",
          static_cast<double>(largest_rank_bytes) / (1 << 20));
    }
    return IoBackend::kBuffered;
  }
  const std::vector<BackendSpeed> speeds = MeasureBackends(fs_, directory, kMeasureBytes);
  measured_ = speeds.front().backend;
  std::string found;
  for (const BackendSpeed& speed : speeds) {
    found += fmt::format("{}{} {:.0f} MB/s", found.empty() ? "" : ", ", NameOf(speed.backend),
                         speed.bytes_per_s * 1e-6);
  }
  log_.Info("checkpoints are written by the {} back-end, measured as the fastest one here: {}",
            NameOf(*measured_), found);
  return *measured_;
}

Result<IoBackend> BackendChoice::Usable(IoBackend ordered) {
  if (ordered != IoBackend::kIoUring) return ordered;
  if (!io_uring_) {
    io_uring_ = fs_.MakeWriteQueue(kWritesUnderWay).status();
    if (!io_uring_->ok() && !wanted_) {
      log_.Warning("rank {} writes by the direct back-end: {}", rank_, io_uring_->message());
    }
  }
  if (io_uring_->ok()) return ordered;
  if (!wanted_) return IoBackend::kDirect;
  return Status(
      StatusCode::kConfig,
      fmt::format("{} is io_uring, which cannot be had on this machine: {}: set it to direct or "
                  "auto",
                  setting_, io_uring_->message()));
}

}  // namespace keel::checkpoint
