#include "trainer/metrics/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <system_error>

#include "common/process/host_name.h"
#include "common/text.h"
#include "trainer/metrics/event_encoding.h"

namespace keel::trainer {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "events.out.tfevents.";

// The greatest time in the names of the folder's files: a reader takes them in the order of names,
// and a clock may have been set back.
int64_t NewestIn(const std::string& directory) {
  int64_t newest = 0;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    if (!name.starts_with(kPrefix)) continue;
    int64_t time = 0;
    const char* const digits = name.data() + kPrefix.size();
    std::from_chars(digits, name.data() + name.size(), time);
    newest = std::max(newest, time);
  }
  return newest;
}

}  // namespace

EventFile EventFile::Begin(const std::string& directory, int64_t resumed_step, Logger& log,
                           const Clock& clock) {
  // What is wrong with the folder, the first event says.
  std::error_code error;
  fs::create_directories(directory, error);
  const int64_t now =
      std::chrono::duration_cast<std::chrono::seconds>(clock.Wall().time_since_epoch()).count();
  EventFile file(fmt::format("{}/{}{:010}.{}.{}.0", directory, kPrefix,
                             std::max(now, NewestIn(directory) + 1), HostName(), getpid()),
                 log, clock);
  const int64_t again = resumed_step == 0 ? 0 : resumed_step + 1;
  file.head_ =
      EventRecord(FileVersionEvent(file.Now())) + EventRecord(SessionStartEvent(file.Now(), again));
  return file;
}

double EventFile::Now() const {
  return std::chrono::duration<double>(clock_->Wall().time_since_epoch()).count();
}

void EventFile::Write(int64_t step, const std::string& event) {
  if (head_.empty()) {
    file_.Write(step, EventRecord(event));
    return;
  }
  std::error_code error;
  fs::create_directories(fs::path(file_.path()).parent_path(), error);
  if (file_.Write(step, head_ + EventRecord(event))) head_.clear();
}

void EventFile::TakeBack() {
  if (!head_.empty() && file_.Write(0, head_)) head_.clear();
}

void EventFile::Scalars(int64_t step, std::span<const std::pair<std::string, double>> scalars) {
  if (!scalars.empty()) Write(step, ScalarsEvent(Now(), step, scalars));
}

void EventFile::Histogram(int64_t step, std::string_view name, std::span<const double> values) {
  if (!values.empty()) Write(step, HistogramEvent(Now(), step, name, values));
}

void EventFile::Text(int64_t step, std::string_view name, std::string_view markdown) {
  Write(step, TextEvent(Now(), step, name, markdown));
}

}  // namespace keel::trainer
