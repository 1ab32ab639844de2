#include "trainer/metrics/metrics_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "common/files/file_system.h"

namespace keel::trainer {

namespace {

void NameWhatIsNotFinite(Json* json) {
  if (json->is_number_float()) {
    const double value = json->get<double>();
    if (!std::isfinite(value)) *json = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  } else if (json->is_structured()) {
    for (Json& item : *json) NameWhatIsNotFinite(&item);
  }
}

// The lines of an old file, as a run that goes on from `resumed_step` sees them.
struct OldLines {
  std::string kept;
  std::string dropped;
  int64_t later = 0;    // of what is dropped: of steps that will be written again
  int64_t strange = 0;  // and lines that are no metrics
  int64_t first_strange = 0;
};

OldLines SortLines(std::string_view content, int64_t resumed_step) {
  OldLines lines;
  for (int64_t number = 1; !content.empty(); ++number) {
    const size_t end = content.find('\n');
    const bool whole = end != std::string_view::npos;
    const std::string_view line = content.substr(0, end);
    content.remove_prefix(whole ? end + 1 : content.size());
    const Result<Json> json = ParseJson(line, kMetricsName);
    const Result<int64_t> step =
        json.ok() ? GetInt(*json, "step", kMetricsName) : Result<int64_t>(json.status());
    if (whole && step.ok() && *step <= resumed_step) {
      lines.kept.append(line).append("\n");
      continue;
    }
    lines.dropped.append(line).append("\n");
    if (step.ok()) {
      ++lines.later;
    } else if (lines.strange++ == 0) {
      lines.first_strange = number;
    }
  }
  return lines;
}

// A run that begins anew leaves the file of the one before to its reader.
Status SetAside(FileSystem& fs, Logger& log) {
  for (int n = 1;; ++n) {
    const std::string name = fmt::format("metrics.{}.jsonl", n);
    const Status status = fs.Rename(kMetricsName, name, FileSystem::RenameMode::kNoReplace);
    if (status.code() == StatusCode::kAlreadyExists) continue;
    KEEL_RETURN_IF_ERROR(status);
    log.Info("{} of an earlier run is now {}: this one begins anew", fs.Describe(kMetricsName),
             name);
    return fs.SyncDirectory(".");
  }
}

Status DropLines(FileSystem& fs, const std::string& path, std::string_view content,
                 const OldLines& lines, int64_t resumed_step, Logger& log) {
  // 1. What goes is somewhere else before it is gone here. On a full disk it is lost, which is
  // said: a run that has its state goes on.
  const Status added = fs.Append(kDroppedMetricsName, lines.dropped);
  const bool no_room = added.code() == StatusCode::kNoSpace;
  if (!no_room) KEEL_RETURN_IF_ERROR(added);
  std::string what;
  if (lines.later > 0) {
    what =
        fmt::format("{} lines of steps after {}, which are done again", lines.later, resumed_step);
  }
  if (lines.strange > 0) {
    what += fmt::format("{}{} lines that are no metrics, the first of them line {}",
                        what.empty() ? "" : ", and ", lines.strange, lines.first_strange);
  }
  const std::string where = no_room ? fmt::format("are lost: {}", added.message())
                                    : fmt::format("are now at the end of {}", kDroppedMetricsName);
  const LogLevel level = no_room || lines.strange > 0 ? LogLevel::kWarning : LogLevel::kInfo;
  log.Write(level, fmt::format("{}: {} {}", path, what, where));
  // 2. What stays.
  const Status replaced = ReplaceFileDurably(fs, kMetricsName, lines.kept);
  // A full disk: what is to go is at the end, unless someone has edited the file.
  const bool cut = replaced.code() == StatusCode::kNoSpace && content.starts_with(lines.kept) &&
                   ::truncate(path.c_str(), static_cast<off_t>(lines.kept.size())) == 0;
  return cut ? Status::Ok() : replaced;
}

}  // namespace

Result<MetricsFile> MetricsFile::Open(const std::string& directory, int64_t resumed_step,
                                      Logger& log) {
  KEEL_ASSIGN_OR_RETURN(const auto fs, OpenPosixFileSystem(directory, true, LinkPolicy::kFollow));
  const std::string path = fs->Describe(kMetricsName);
  const Result<std::string> content =
      ReadFile(*fs, kMetricsName, std::numeric_limits<int64_t>::max());
  if (content.ok() && !content->empty()) {
    const OldLines lines = SortLines(*content, resumed_step);
    if (resumed_step == 0) {
      KEEL_RETURN_IF_ERROR(SetAside(*fs, log));
    } else if (!lines.dropped.empty()) {
      KEEL_RETURN_IF_ERROR(DropLines(*fs, path, *content, lines, resumed_step, log));
    }
  } else if (!content.ok() && content.status().code() != StatusCode::kNotFound) {
    return content.status();
  }
  MetricsFile file(path, log);
  const Status opened = file.file_.Open();
  if (!opened.ok() && opened.code() != StatusCode::kNoSpace) return opened;
  return file;
}

void MetricsFile::Write(int64_t step, Json data) {
  NameWhatIsNotFinite(&data);
  const Json line = {{"step", step}, {"data", std::move(data)}};
  file_.Write(step, line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace keel::trainer
