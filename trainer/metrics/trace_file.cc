#include "trainer/metrics/trace_file.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/process/host_name.h"

namespace keel::trainer {

namespace {

namespace fs = std::filesystem;

constexpr const char* kPieces = "pieces of the trace";

// The process that wrote it before may have been killed within a line.
bool EndsWithinALine(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file || file.tellg() <= 0) return false;
  file.seekg(-1, std::ios::end);
  return file.get() != '\n';
}

// The kernel's name of this start of the machine: all that have it share the monotonic clock.
std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

// Of a run that begins anew: what this rank has of another, and rank 0 also what ranks have left
// that there are no more, or that come later (rollout workers).
Status RemoveEarlier(const std::string& directory, const TraceHeader& header) {
  std::error_code error;
  std::vector<fs::path> earlier;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    const std::optional<int> rank = RankOfTraceFile(at->path().filename());
    if (rank && (*rank == header.rank || (header.rank == 0 && *rank >= header.world)))
      earlier.push_back(at->path());
  }
  if (error) return Status::FromErrno(error.value(), "read", directory);
  for (const fs::path& path : earlier) {
    fs::remove(path, error);
    if (error) return Status::FromErrno(error.value(), "remove", path.string());
  }
  return Status::Ok();
}

}  // namespace

TraceHeader HeaderOfThisProcess() {
  TraceHeader header;
  header.host = HostName();
  header.boot = BootId();
  header.pid = getpid();
  header.unix_ns = std::chrono::nanoseconds(SystemClock().Wall().time_since_epoch()).count();
  header.monotonic_ns = SystemClock().Monotonic().count();
  return header;
}

TraceFile::TraceFile(std::string directory, const TraceHeader& header, int64_t most_bytes,
                     Logger& log)
    : directory_(std::move(directory)),
      header_(header),
      most_bytes_(most_bytes),
      log_(&log),
      file_(directory_ + "/" + TraceFileName(header.rank), kPieces, log) {}

Result<TraceFile> TraceFile::Open(const std::string& folder, const TraceHeader& header,
                                  int64_t resumed_step, int64_t most_bytes, Logger& log) {
  const std::string directory = folder + "/" + std::string(kTraceFolder);
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return Status::FromErrno(error.value(), "mkdir", directory);
  TraceFile file(directory, header, most_bytes, log);
  if (resumed_step == 0) KEEL_RETURN_IF_ERROR(RemoveEarlier(directory, header));
  const Status opened = file.file_.Open();
  if (!opened.ok() && opened.code() != StatusCode::kNoSpace) return opened;
  const std::string& path = file.file_.path();
  const auto size = fs::file_size(path, error);
  file.bytes_ = error ? 0 : static_cast<int64_t>(size);
  file.Append(resumed_step, (EndsWithinALine(path) ? "\n" : "") + HeaderLine(header));
  return file;
}

void TraceFile::Append(int64_t step, const std::string& text) {
  if (file_.Write(step, text)) bytes_ += static_cast<int64_t>(text.size());
}

void TraceFile::Write(int64_t step, SpanRecorder& recorder) {
  const auto [spans, dropped] = recorder.Take();
  if (spans.empty() && dropped == 0) return;
  std::string text;
  if (bytes_ > most_bytes_ / 2) {
    std::error_code error;
    const std::string& path = file_.path();
    fs::rename(path, directory_ + "/" + OldTraceFileName(header_.rank), error);
    file_.Close();
    // Where it cannot be renamed, nothing is added either: the bound holds.
    if (error) return;
    file_ = AppendFile(path, kPieces, *log_);
    bytes_ = 0;
    text = HeaderLine(header_);
  }
  text.reserve(text.size() + 64 * spans.size());
  for (const Span& span : spans) AppendSpanLine(span, &text);
  if (dropped > 0) text += DroppedLine(dropped);
  Append(step, text);
}

}  // namespace keel::trainer
