#include "tools/report_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

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

Status ReadMetrics(const fs::path& folder, ReportRun* run) {
  const fs::path path = folder / "metrics.jsonl";
  std::ifstream file(path);
  if (!file) {
    return Status(StatusCode::kNotFound,
                  fmt::format("{}: cannot be read; expected the folder of a run "
                              "(trainer.default_local_dir) with the jsonl logger",
                              path.string()));
  }
  for (std::string line; std::getline(file, line);) {
    const Result<Json> record = ParseJson(line, "metrics.jsonl");
    const Result<int64_t> step =
        record.ok() ? GetInt(*record, "step", "metrics.jsonl") : Result<int64_t>(record.status());
    if (!step.ok() || !record->contains("data") || !(*record)["data"].is_object()) {
      ++run->strange_lines;
      continue;
    }
    run->steps = std::max(run->steps, *step);
    bool loaded = false;
    for (const auto& [name, value] : (*record)["data"].items()) {
      loaded |= name.starts_with("checkpoint/load/");
      if (const auto number = NumberOf(value)) run->metrics[name].push_back({*step, *number});
    }
    if (loaded) run->starts.push_back(*step);
  }
  return Status::Ok();
}

void ReadCheckpoints(const fs::path& folder, ReportRun* run) {
  std::ifstream file(folder / "checkpoints.jsonl");
  std::set<int64_t> removed;
  for (std::string line; std::getline(file, line);) {
    const Result<Json> record = ParseJson(line, "checkpoints.jsonl");
    if (!record.ok() || !record->is_object()) continue;
    const std::string event = record->value("event", "");
    CheckpointMark mark;
    if (event != "save" && event != "save_failed" && event != "removed") continue;
    mark.step = record->value("step", int64_t{-1});
    mark.bytes = record->value("total_bytes", int64_t{0});
    mark.lost_s = record->value("lost_s", 0.0);
    mark.failed = event == "save_failed";
    if (event == "removed") {
      removed.insert(mark.step);
      continue;
    }
    removed.erase(mark.step);
    if (record->contains("removed"))
      for (const Json& step : (*record)["removed"])
        if (step.is_number_integer()) removed.insert(step.get<int64_t>());
    run->checkpoints.push_back(mark);
  }
  for (CheckpointMark& mark : run->checkpoints) mark.removed = removed.contains(mark.step);
}

// Of the newest file <step>.jsonl of one of the run's folders of responses.
void ReadSamples(const options::FlatValues& config, ReportRun* run) {
  for (const char* key : {"trainer.validation_data_dir", "trainer.rollout_data_dir"}) {
    const auto found = config.find(key);
    if (found == config.end() || found->second == "null") continue;
    fs::path newest;
    int64_t last = -1;
    std::error_code error;
    for (fs::directory_iterator at(found->second, error), end; !error && at != end;
         at.increment(error)) {
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
    return;
  }
}

}  // namespace

Result<ReportRun> ReadReportRun(const std::string& folder) {
  ReportRun run;
  const fs::path path = fs::absolute(folder).lexically_normal();
  run.name = path.has_filename() ? path.filename() : path.parent_path().filename();
  KEEL_RETURN_IF_ERROR(ReadMetrics(path, &run));
  ReadCheckpoints(path, &run);
  std::ifstream config(path / "config.yaml");
  std::ostringstream text;
  text << config.rdbuf();
  if (auto flat = options::Flatten({"config.yaml", text.str()}); flat.ok())
    run.config = std::move(*flat);
  ReadSamples(run.config, &run);
  for (const std::string& key : trainer::SecretKeys())
    if (const auto found = run.config.find(key);
        found != run.config.end() && found->second != "null" && found->second != "[]")
      found->second = "(not shown)";
  return run;
}

}  // namespace keel::tools
