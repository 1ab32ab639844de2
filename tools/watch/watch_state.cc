#include "tools/watch/watch_state.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include "checkpoint/format/names.h"
#include "common/files/posix_file.h"
#include "common/process/host_name.h"
#include "common/text.h"
#include "tools/report/run_status.h"
#include "trainer/metrics/step_parts.h"

namespace keel::tools {

namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kDeskPatience{500};
constexpr std::chrono::seconds kDeskPeriod{2};

int64_t Now() { return static_cast<int64_t>(std::time(nullptr)); }

// Whether some process of this machine holds a lock on the file; an errno where that cannot be
// told.
Result<bool> IsLocked(const Descriptor& file, const std::string& path) {
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return Status::FromErrno(errno, "stat", path);
  // 1. The kernel's list, by which nobody is disturbed.
  const std::string place =
      fmt::format(" {:02x}:{:02x}:{} ", major(info.st_dev), minor(info.st_dev), info.st_ino);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);)
    if (line.find("FLOCK") != std::string::npos && line.find(place) != std::string::npos)
      return true;
  // 2. It hides those of other containers, and some file systems have another number there. A lock
  // that readers share shows these. A run that begins at this very moment looks again (RunLock).
  if (Retry([&] { return ::flock(file.get(), LOCK_SH | LOCK_NB); }) == 0) {
    (void)::flock(file.get(), LOCK_UN);
    return false;
  }
  if (errno == EWOULDBLOCK) return true;
  return Status::FromErrno(errno, "lock", path);
}

std::string Ago(double seconds) {
  const auto s = static_cast<int64_t>(std::max(0.0, seconds));
  if (s < 120) return fmt::format("{} s ago", s);
  if (s < 7200) return fmt::format("{} min ago", s / 60);
  if (s < 48 * 3600) return fmt::format("{} h ago", s / 3600);
  return fmt::format("{} days ago", s / 86400);
}

std::string Duration(double seconds) {
  const auto s = static_cast<int64_t>(std::max(0.0, seconds));
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

const std::vector<MetricPoint>* PointsOf(const ReportRun& run, std::string_view name) {
  const auto found = run.metrics.find(std::string(name));
  return found == run.metrics.end() || found->second.empty() ? nullptr : &found->second;
}

// Mean seconds of the last steps; 0 before there is one.
double MeanStep(const ReportRun& run) {
  constexpr size_t kSteps = 20;
  for (const std::string_view name : trainer::kStepSeconds) {
    const auto* points = PointsOf(run, name);
    if (points == nullptr) continue;
    const size_t count = std::min(kSteps, points->size());
    double sum = 0;
    for (size_t i = points->size() - count; i < points->size(); ++i) sum += (*points)[i].value;
    return sum / static_cast<double>(count);
  }
  return 0;
}

std::string StateText(const WatchState& state) {
  switch (state.writer.kind) {
    case RunWriter::Kind::kHere:
      return "running";
    case RunWriter::Kind::kAway:
      return "running: " + Printable(state.writer.who, 120);
    case RunWriter::Kind::kGone:
      return "was killed, or lost its machine: " + Printable(state.writer.who, 120);
    case RunWriter::Kind::kHidden:
      return "not known: " + Printable(state.writer.who, 200);
    case RunWriter::Kind::kNone:
      break;
  }
  if (!state.begun) {
    return state.kept > 0 ? "is not running, and has no metrics.jsonl (trainer.logger: jsonl)"
                          : "has not begun";
  }
  const bool all = state.total_steps && state.run->steps >= *state.total_steps;
  return all ? "all steps are done" : "is not running";
}

std::string StepText(const WatchState& state) {
  const ReportRun& run = *state.run;
  if (!state.total_steps) return std::to_string(run.steps);
  const int64_t left = std::max<int64_t>(0, *state.total_steps - run.steps);
  std::string text =
      fmt::format("{}/{} ({:.0f} %)", run.steps, *state.total_steps,
                  std::floor(100.0 * static_cast<double>(run.steps) /
                             static_cast<double>(std::max<int64_t>(1, *state.total_steps))));
  const double mean = MeanStep(run);
  if (left > 0 && mean > 0) text += ", " + Duration(mean * static_cast<double>(left)) + " left";
  return text;
}

std::string FigureText(const trainer::Figure& figure, const std::vector<MetricPoint>& points) {
  std::string text = fmt::format("{:.4f}", points.back().value);
  const MetricPoint* best = nullptr;
  for (const MetricPoint& point : points) {
    if (!std::isfinite(point.value)) continue;
    if (best == nullptr ||
        (figure.higher_is_better ? point.value > best->value : point.value < best->value))
      best = &point;
  }
  if (best != nullptr && best->step != points.back().step)
    text += fmt::format(", best {:.4f} at step {}", best->value, best->step);
  return text;
}

std::string CheckpointText(const WatchState& state) {
  const auto& marks = state.run->checkpoints;
  const auto last = std::find_if(marks.rbegin(), marks.rend(),
                                 [](const CheckpointMark& mark) { return !mark.failed; });
  // The line of a save follows when the step beside it has ended, which may take long.
  if (state.newest >= 0 && (last == marks.rend() || last->step != state.newest)) {
    return fmt::format("step {}, {}; {} there", state.newest,
                       Ago(static_cast<double>(state.now_s - state.newest_s)), state.kept);
  }
  if (last == marks.rend()) return "none";
  std::string text = fmt::format("step {}", last->step);
  const int64_t at_s = state.newest == last->step ? state.newest_s : last->at_s;
  if (at_s > 0) text += ", " + Ago(static_cast<double>(state.now_s - at_s));
  text += fmt::format(", {:.1f} MiB", static_cast<double>(last->bytes) / (1 << 20));
  if (last->lost_s >= 0) text += fmt::format(", lost {:.2f} s", last->lost_s);
  return text + fmt::format("; {} there", state.kept);
}

std::string DeskText(const Json& desk) {
  if (desk.contains("problem")) return Printable(desk["problem"].get<std::string>(), 300);
  double idle = 0;
  for (const Json& worker : desk["workers"]) idle += worker.value("idle", 0.0);
  const size_t count = desk["workers"].size();
  return fmt::format("{} there, {} lost, idle {:.0f} %; weights version {}", count,
                     desk.value("lost", int64_t{0}),
                     count == 0 ? 0.0 : 100 * idle / static_cast<double>(count),
                     desk.value("version", int64_t{0}));
}

}  // namespace

WatchedRun::WatchedRun(std::string folder) : folder_(std::move(folder)), reader_(folder_) {
  state_.run = &reader_.run();
}

RunWriter WatchedRun::Writer() const {
  const std::string path = folder_ + "/" + std::string(checkpoint::kLockName);
  using enum RunWriter::Kind;
  const Descriptor file(
      Retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW); }));
  if (!file.valid()) {
    if (errno == ENOENT || errno == ENOTDIR) return {};
    return {kHidden, Status::FromErrno(errno, "open", path).message()};
  }
  std::array<char, 4096> text{};
  const ssize_t size = Retry([&] { return ::pread(file.get(), text.data(), text.size(), 0); });
  if (size < 0) return {kHidden, Status::FromErrno(errno, "read", path).message()};
  std::string holder(text.data(), static_cast<size_t>(size));
  holder.resize(std::min(holder.size(), holder.find('\n')));
  if (holder.empty()) return {};
  const bool here = holder.find(fmt::format(", host {}, ", HostName())) != std::string::npos;
  if (!here) return {kAway, holder};
  const Result<bool> locked = IsLocked(file, path);
  if (!locked.ok()) return {kHidden, locked.status().message()};
  return {*locked ? kHere : kGone, holder};
}

// What is saved, and being saved.
void WatchedRun::ReadFolder() {
  state_.kept = 0;
  state_.newest = -1;
  state_.newest_s = 0;
  state_.saves.clear();
  std::error_code error;
  for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    const auto scratch = checkpoint::ParseScratchDirectory(name);
    const auto step = checkpoint::ParseStepDirectory(name);
    if (step) ++state_.kept;
    const bool saving = scratch && scratch->kind == checkpoint::ScratchKind::kTemporary;
    struct stat info {};
    // Of a step when it was committed: the folder's own time is that of a pin, say.
    const std::string timed = at->path().string() + (step ? "/manifest.json" : "");
    if ((!step && !saving) || ::stat(timed.c_str(), &info) != 0) continue;
    if (step) {
      if (std::pair<int64_t, int64_t>(info.st_mtime, *step) >
          std::pair(state_.newest_s, state_.newest)) {
        state_.newest = *step;
        state_.newest_s = info.st_mtime;
      }
      continue;
    }
    state_.saves.push_back(
        {scratch->step, static_cast<double>(std::max<int64_t>(0, state_.now_s - info.st_mtime))});
  }
  struct stat info {};
  const bool there = ::stat((folder_ + "/metrics.jsonl").c_str(), &info) == 0;
  state_.age_s =
      there ? static_cast<double>(std::max<int64_t>(0, state_.now_s - info.st_mtime)) : -1;
}

Status WatchedRun::Look() {
  state_.now_s = Now();
  const Result<bool> looked = reader_.Look();
  state_.begun = looked.ok() || !reader_.run().metrics.empty();
  state_.writer = Writer();
  ReadFolder();
  // Of a run by epochs only its steps know.
  state_.total_steps = reader_.run().total_steps;
  const auto& config = reader_.run().config;
  if (const auto found = config.find("trainer.total_training_steps"); found != config.end()) {
    int64_t total = 0;
    if (std::istringstream(found->second) >> total && total > 0) state_.total_steps = total;
  }
  const auto now = std::chrono::steady_clock::now();
  if (now >= next_desk_) {
    next_desk_ = now + kDeskPeriod;
    const Result<Json> desk = DeskStatus(folder_, kDeskPatience);
    state_.desk = desk.ok() ? *desk : Json::object({{"problem", desk.status().message()}});
  }
  if (looked.ok() || looked.status().code() == StatusCode::kNotFound) return Status::Ok();
  return looked.status();
}

std::vector<std::pair<std::string, double>> LastStepParts(const ReportRun& run) {
  std::vector<std::pair<std::string, double>> parts;
  double whole = 0;
  int64_t step = -1;
  for (const std::string_view name : trainer::kStepSeconds) {
    if (const auto* points = PointsOf(run, name)) {
      whole = points->back().value;
      step = points->back().step;
    }
  }
  double known = 0;
  for (const trainer::StepPart& part : trainer::kStepParts) {
    const auto* points = PointsOf(run, part.metric);
    // A validation is after the step.
    if (points == nullptr || points->back().step != step || part.name == "validate") continue;
    const double seconds = points->back().value;
    if (!(seconds > 0)) continue;
    parts.emplace_back(part.name, seconds);
    known += seconds;
  }
  if (whole > known) parts.emplace_back("other", whole - known);
  return parts;
}

std::vector<std::pair<std::string, std::string>> WatchFacts(const WatchState& state) {
  const ReportRun& run = *state.run;
  std::vector<std::pair<std::string, std::string>> facts;
  const auto add = [&](const char* name, std::string text) {
    if (!text.empty()) facts.emplace_back(name, std::move(text));
  };
  add("state",
      StateText(state) + (state.age_s >= 0 ? "; last line " + Ago(state.age_s) : std::string()));
  if (!state.begun) return facts;
  add("step", StepText(state));
  for (const auto& figures : {std::span<const trainer::Figure>(trainer::kStepFigures),
                              std::span<const trainer::Figure>(trainer::kValidationFigures)}) {
    for (const trainer::Figure& figure : figures) {
      if (const auto* points = PointsOf(run, figure.metric))
        facts.emplace_back(figure.name, FigureText(figure, *points));
    }
  }
  for (const std::string_view name : trainer::kTokensPerSecond) {
    if (const auto* points = PointsOf(run, name))
      add("tokens/s", fmt::format("{:.0f}", points->back().value));
  }
  add("checkpoint", CheckpointText(state));
  std::string saving;
  for (const SaveInFlight& save : state.saves) {
    using enum RunWriter::Kind;
    const bool under_way = state.writer.kind != kNone && state.writer.kind != kGone;
    saving += fmt::format("{}step {}{}", saving.empty() ? "" : "; ", save.step,
                          under_way ? fmt::format(" for {:.0f} s", save.seconds)
                                    : " was not finished: the next start removes it");
  }
  add("saving", saving);
  if (!state.desk.is_null()) add("workers", DeskText(state.desk));
  return facts;
}

}  // namespace keel::tools
