#include "tools/report/report_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "trainer/config/choices.h"
#include "trainer/config/config.h"

namespace keel::tools {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMostSamples = 5;

std::optional<double> NumberOf(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (value == "nan") return std::nan("");
  if (value == "inf") return HUGE_VAL;
  if (value == "-inf") return -HUGE_VAL;
  return std::nullopt;
}

// "2026-11-25T02:35:44Z" in seconds since 1970; 0 where it is no such time.
int64_t SecondsOf(const std::string& time) {
  std::tm parts{};
  const char* const end = ::strptime(time.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return end != nullptr && *end == '\0' ? static_cast<int64_t>(::timegm(&parts)) : 0;
}

std::string NameOf(const fs::path& path) {
  return path.has_filename() ? path.filename() : path.parent_path().filename();
}

}  // namespace

RunReader::RunReader(const std::string& folder)
    : folder_(folder),
      metrics_(folder + "/metrics.jsonl"),
      checkpoints_(folder + "/checkpoints.jsonl") {
  run_.name = NameOf(fs::absolute(folder).lexically_normal());
}

void RunReader::TakeMetrics(std::string_view line) {
  const Result<Json> record = ParseJson(line, "metrics.jsonl");
  const Result<int64_t> step =
      record.ok() ? GetInt(*record, "step", "metrics.jsonl") : Result<int64_t>(record.status());
  if (!step.ok() || !record->contains("data") || !(*record)["data"].is_object()) {
    ++run_.strange_lines;
    return;
  }
  run_.steps = std::max(run_.steps, *step);
  if (const Result<int64_t> total = GetInt(*record, "total_steps", "metrics.jsonl");
      total.ok() && *total > 0)
    run_.total_steps = *total;
  for (const auto& [name, value] : (*record)["data"].items())
    if (const auto number = NumberOf(value)) run_.metrics[name].push_back({*step, *number});
}

void RunReader::TakeCheckpoint(std::string_view line) {
  const Result<Json> record = ParseJson(line, "checkpoints.jsonl");
  if (!record.ok() || !record->is_object()) {
    ++run_.strange_saves;
    return;
  }
  const auto number = [&]<typename T>(const char* key, T otherwise) {
    const auto found = record->find(key);
    return found != record->end() && found->is_number() ? found->template get<T>() : otherwise;
  };
  const auto text = [&](const char* key) {
    const auto found = record->find(key);
    return found != record->end() && found->is_string() ? found->get<std::string>() : "";
  };
  const std::string event = text("event");
  if (event == "load") run_.starts.push_back(number("step", int64_t{0}));
  // What is there is of an earlier run, whose place this one takes.
  if (event == "begin" && text("resume_mode") == keel::NameOf(trainer::ResumeKind::kDisable))
    run_.starts.clear();
  if (event != "save" && event != "save_failed" && event != "removed") return;
  CheckpointMark mark;
  mark.step = number("step", int64_t{-1});
  mark.bytes = number("total_bytes", int64_t{0});
  mark.lost_s = number("lost_s", 0.0);
  mark.failed = event == "save_failed";
  mark.at_s = SecondsOf(text("time"));
  if (event == "removed") {
    removed_.insert(mark.step);
    return;
  }
  removed_.erase(mark.step);
  if (record->contains("removed"))
    for (const Json& step : (*record)["removed"])
      if (step.is_number_integer()) removed_.insert(step.get<int64_t>());
  run_.checkpoints.push_back(mark);
}

// A path of the configuration, which is relative to where training was started: what is left of the
// run's folder without trainer.default_local_dir, where that is relative, too.
std::optional<fs::path> RunReader::WhereItTrained(const std::string& path) const {
  if (fs::path(path).is_absolute()) return path;
  const auto own = run_.config.find("trainer.default_local_dir");
  if (own == run_.config.end() || fs::path(own->second).is_absolute()) return std::nullopt;
  const auto parts = [](const fs::path& whole) {
    const fs::path normal = whole.lexically_normal();
    std::vector<fs::path> all(normal.begin(), normal.end());
    if (!all.empty() && all.back().empty()) all.pop_back();  // behind a last slash
    return all;
  };
  std::error_code error;
  const std::vector<fs::path> folder = parts(fs::absolute(folder_, error));
  const std::vector<fs::path> tail = parts(own->second);
  if (error || folder.size() < tail.size() ||
      !std::equal(tail.rbegin(), tail.rend(), folder.rbegin()))
    return std::nullopt;
  fs::path start;
  for (size_t i = 0; i + tail.size() < folder.size(); ++i) start /= folder[i];
  return start / path;
}

// Of the newest file <step>.jsonl of one of the run's folders of responses.
void RunReader::ReadSamples() {
  ReportRun* const run = &run_;
  run->samples.clear();
  run->samples_from.clear();
  run->samples_lost.clear();
  const options::FlatValues& config = run_.config;
  for (const char* key : {"trainer.validation_data_dir", "trainer.rollout_data_dir"}) {
    const auto found = config.find(key);
    if (found == config.end() || found->second == "null") continue;
    const std::optional<fs::path> folder = WhereItTrained(found->second);
    if (!folder) {
      run->samples_lost = fmt::format(
          "{} is {}, from where training was started, and the run does not say where that was", key,
          found->second);
      continue;
    }
    fs::path newest;
    int64_t last = -1;
    std::error_code error;
    for (fs::directory_iterator at(*folder, error), end; !error && at != end; at.increment(error)) {
      const std::string name = at->path().filename();
      int64_t step = -1;
      const auto parsed = std::from_chars(name.data(), name.data() + name.size(), step);
      if (std::string_view(parsed.ptr) == ".jsonl" && step > last) {
        last = step;
        newest = at->path();
      }
    }
    std::ifstream file(newest);
    for (std::string line; run->samples.size() < kMostSamples && std::getline(file, line);) {
      Result<Json> row = ParseJson(line, "a dump");
      if (row.ok() && row->is_object()) run->samples.push_back(std::move(*row));
    }
    if (run->samples.empty()) continue;
    run->samples_from = newest;
    run->samples_lost.clear();
    return;
  }
}

Result<bool> RunReader::ReadConfig() {
  const std::string path = folder_ + "/config.yaml";
  errno = 0;
  std::ifstream config(path);
  if (!config && errno != ENOENT) return Status::FromErrno(errno, "open", path);
  std::ostringstream text;
  text << config.rdbuf();
  if (text.str() == config_text_) return false;
  config_text_ = text.str();
  auto flat = options::Flatten({"config.yaml", config_text_});
  if (!flat.ok()) return false;
  run_.config = std::move(*flat);
  for (const std::string& key : trainer::SecretKeys())
    if (const auto found = run_.config.find(key);
        found != run_.config.end() && found->second != "null" && found->second != "[]")
      found->second = "(not shown)";
  return true;
}

Result<bool> RunReader::Look() {
  KEEL_ASSIGN_OR_RETURN(bool changed, ReadConfig());
  const Result<bool> saves = checkpoints_.Read(
      [&] {
        run_.checkpoints.clear();
        run_.starts.clear();
        run_.strange_saves = 0;
        removed_.clear();
      },
      [&](std::string_view line) { TakeCheckpoint(line); });
  if (saves.ok() && *saves) {
    changed = true;
    // Of two saves of one step, as after a resume from an earlier one, the later took the place.
    std::set<int64_t> later;
    for (auto mark = run_.checkpoints.rbegin(); mark != run_.checkpoints.rend(); ++mark) {
      const bool again = !mark->failed && !later.insert(mark->step).second;
      mark->removed = again || removed_.contains(mark->step);
    }
  }
  const Result<bool> lines = metrics_.Read(
      [&] {
        run_.metrics.clear();
        run_.steps = run_.strange_lines = 0;
        run_.total_steps.reset();
      },
      [&](std::string_view line) { TakeMetrics(line); });
  if (!lines.ok()) return lines.status();
  changed = changed || *lines;
  if (changed) ReadSamples();
  return changed;
}

Result<ReportRun> ReadReportRun(const std::string& folder) {
  RunReader reader(folder);
  const Result<bool> looked = reader.Look();
  if (!looked.ok()) {
    return Status(looked.status().code(),
                  fmt::format("{}; expected the folder of a run (trainer.default_local_dir) with "
                              "the jsonl logger, of which its config.yaml and metrics.jsonl can be "
                              "read",
                              looked.status().message()));
  }
  ReportRun run = reader.run();
  if (reader.unfinished()) ++run.strange_lines;
  return run;
}

double LastOf(const ReportRun& run, const std::string& metric) {
  const auto found = run.metrics.find(metric);
  return found == run.metrics.end() ? 0 : found->second.back().value;
}

std::vector<std::string> RunWarnings(const ReportRun& run) {
  std::vector<std::string> said;
  if (run.strange_lines > 0)
    said.push_back(fmt::format("{} lines of metrics.jsonl are no metrics", run.strange_lines));
  if (run.strange_saves > 0)
    said.push_back(fmt::format("{} lines of checkpoints.jsonl are damaged", run.strange_saves));
  const double skipped = LastOf(run, "skipped_steps") + LastOf(run, "training/skipped_updates");
  if (skipped > 0) {
    said.push_back(
        fmt::format("{:.6g} updates changed nothing: loss or norm was not finite", skipped));
  }
  double errors = 0;
  if (const auto found = run.metrics.find("reward/errors"); found != run.metrics.end())
    for (const MetricPoint& point : found->second) errors += point.value;
  if (errors > 0) said.push_back(fmt::format("{:.6g} responses have no score", errors));
  const auto failed = std::count_if(run.checkpoints.begin(), run.checkpoints.end(),
                                    [](const CheckpointMark& mark) { return mark.failed; });
  if (failed > 0) said.push_back(fmt::format("{} save{} failed", failed, failed == 1 ? "" : "s"));
  if (!run.starts.empty())
    said.push_back(run.starts.size() == 1
                       ? std::string("it went on from a checkpoint once")
                       : fmt::format("it went on from a checkpoint {} times", run.starts.size()));
  return said;
}

}  // namespace keel::tools
