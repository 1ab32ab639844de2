#include "trainer/metrics/metrics_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

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

using Lines = std::vector<std::string>;

std::string TextOf(const Lines& lines, size_t from = 0) {
  std::string text;
  for (size_t n = from; n < lines.size(); ++n) text.append(lines[n]).append("\n");
  return text;
}

// What an old file holds.
struct OldLines {
  Lines metrics;
  Lines strange;  // no metrics
  int64_t first_strange = 0;
};

OldLines SortLines(std::string_view content) {
  OldLines lines;
  for (int64_t number = 1; !content.empty(); ++number) {
    const size_t end = content.find('\n');
    const bool whole = end != std::string_view::npos;
    const std::string_view line = content.substr(0, end);
    content.remove_prefix(whole ? end + 1 : content.size());
    const Result<Json> json = ParseJson(line, kMetricsName);
    const bool metrics = whole && json.ok() && GetInt(*json, "step", kMetricsName).ok();
    (metrics ? lines.metrics : lines.strange).emplace_back(line);
    if (!metrics && lines.strange.size() == 1) lines.first_strange = number;
  }
  return lines;
}

int64_t StepOf(const std::string& line) {
  return ValueOrThrow(GetInt(ValueOrThrow(ParseJson(line, kMetricsName)), "step", kMetricsName));
}

Result<std::string> ReadIfThere(const FileSystem& fs, std::string_view name) {
  Result<std::string> content = ReadFile(fs, name, std::numeric_limits<int64_t>::max());
  if (!content.ok() && content.status().code() == StatusCode::kNotFound) return std::string();
  return content;
}

// The lines of the run that goes on: `lines`, without what starts that its checkpoint knows nothing
// of did to them, up to its step.
Result<Lines> LinesUpTo(const FileSystem& fs, Lines lines, const MetricsStart& start) {
  KEEL_ASSIGN_OR_RETURN(const std::string dropped, ReadIfThere(fs, kDroppedMetricsName));
  const std::vector<MetricsRewind> rewinds = ParseRewinds(dropped);
  for (auto rewind = rewinds.rbegin(); rewind != rewinds.rend(); ++rewind) {
    if (!IsTakenBack(*rewind, start)) break;
    lines.resize(std::min(lines.size(), static_cast<size_t>(rewind->kept)));
    lines.insert(lines.end(), rewind->lines.begin(), rewind->lines.end());
    if (rewind->file.empty()) continue;
    KEEL_ASSIGN_OR_RETURN(const std::string earlier, ReadIfThere(fs, rewind->file));
    const Lines back = SortLines(earlier).metrics;
    lines.insert(lines.end(), back.begin(), back.end());
  }
  std::erase_if(lines, [&](const std::string& line) { return StepOf(line) > start.step; });
  return lines;
}

// A run that begins anew leaves the file of the one before to its reader.
Status SetAside(FileSystem& fs, const MetricsStart& start, Logger& log) {
  for (int n = 1;; ++n) {
    const std::string name = fmt::format("metrics.{}.jsonl", n);
    const Status status = fs.Rename(kMetricsName, name, FileSystem::RenameMode::kNoReplace);
    if (status.code() == StatusCode::kAlreadyExists) continue;
    KEEL_RETURN_IF_ERROR(status);
    log.Info("{} of an earlier run is now {}: this one begins anew", fs.Describe(kMetricsName),
             name);
    KEEL_RETURN_IF_ERROR(fs.SyncDirectory("."));
    const Status added =
        fs.Append(kDroppedMetricsName, MetricsRewind{0, start.newest_sequence, 0, name}.Text());
    return added.code() == StatusCode::kNoSpace ? Status::Ok() : added;
  }
}

// Makes `wanted` of `content`, whose lines are `old`. Returns those that were not among them.
Result<Lines> Rewrite(FileSystem& fs, std::string_view content, const OldLines& old,
                      const Lines& wanted, const MetricsStart& start, Logger& log) {
  const auto [ends, begins] = std::ranges::mismatch(old.metrics, wanted);
  const auto later = static_cast<size_t>(old.metrics.end() - ends);
  Lines back(begins, wanted.end());
  // 1. What goes is somewhere else before it is gone here. On a full disk it is lost, which is
  // said: a run that has its state goes on.
  std::string dropped = TextOf(old.strange);
  if (later > 0) {
    dropped += MetricsRewind{start.step, start.newest_sequence, begins - wanted.begin(), "",
                             Lines(ends, old.metrics.end())}
                   .Text();
  }
  const Status added = dropped.empty() ? Status::Ok() : fs.Append(kDroppedMetricsName, dropped);
  const bool no_room = added.code() == StatusCode::kNoSpace;
  if (!no_room) KEEL_RETURN_IF_ERROR(added);
  std::string what;
  if (later > 0) {
    what = back.empty()
               ? fmt::format("{} lines of steps after {}, which are done again", later, start.step)
               : fmt::format("{} lines of steps that were done after step {} was saved", later,
                             start.step);
  }
  if (!old.strange.empty()) {
    what += fmt::format("{}{} lines that are no metrics, the first of them line {}",
                        what.empty() ? "" : ", and ", old.strange.size(), old.first_strange);
  }
  const std::string path = fs.Describe(kMetricsName);
  if (!what.empty()) {
    const std::string where = no_room
                                  ? fmt::format("are lost: {}", added.message())
                                  : fmt::format("are now at the end of {}", kDroppedMetricsName);
    const bool bad = no_room || !old.strange.empty();
    log.Write(bad ? LogLevel::kWarning : LogLevel::kInfo,
              fmt::format("{}: {} {}", path, what, where));
  }
  if (!back.empty()) {
    log.Info("{}: {} lines up to step {} are back: an earlier start had taken them out", path,
             back.size(), start.step);
  }
  // 2. What stays.
  const std::string stays = TextOf(wanted);
  const Status replaced = ReplaceFileDurably(fs, kMetricsName, stays);
  // A full disk: what is to go is at the end, unless someone has edited the file.
  const bool cut = replaced.code() == StatusCode::kNoSpace && content.starts_with(stays) &&
                   ::truncate(path.c_str(), static_cast<off_t>(stays.size())) == 0;
  if (!cut) KEEL_RETURN_IF_ERROR(replaced);
  return back;
}

}  // namespace

Result<MetricsFile> MetricsFile::Open(const std::string& directory, const MetricsStart& start,
                                      Logger& log) {
  KEEL_ASSIGN_OR_RETURN(const auto fs, OpenPosixFileSystem(directory, true, LinkPolicy::kFollow));
  const std::string path = fs->Describe(kMetricsName);
  KEEL_ASSIGN_OR_RETURN(const std::string content, ReadIfThere(*fs, kMetricsName));
  MetricsFile file(path, log);
  if (start.step == 0) {
    if (!content.empty()) KEEL_RETURN_IF_ERROR(SetAside(*fs, start, log));
  } else {
    const OldLines old = SortLines(content);
    KEEL_ASSIGN_OR_RETURN(const Lines wanted, LinesUpTo(*fs, old.metrics, start));
    if (!old.strange.empty() || wanted != old.metrics) {
      KEEL_ASSIGN_OR_RETURN(file.restored_, Rewrite(*fs, content, old, wanted, start, log));
    }
  }
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
