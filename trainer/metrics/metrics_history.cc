#include "trainer/metrics/metrics_history.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "common/json.h"

namespace keel::trainer {

namespace {

using Lines = std::vector<std::string>;

std::string TextOf(const Lines& lines) {
  std::string text;
  for (const std::string& line : lines) text.append(line).append("\n");
  return text;
}

// Calls visit(line, whether its end is there).
template <class Visit>
void EachLine(std::string_view text, const Visit& visit) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const bool whole = end != std::string_view::npos;
    visit(text.substr(0, end), whole);
    text.remove_prefix(whole ? end + 1 : text.size());
  }
}

// Nothing for what is no line of metrics.
std::optional<int64_t> StepIn(std::string_view line) {
  const Result<Json> json = ParseJson(line, kMetricsName);
  const Result<int64_t> step =
      json.ok() ? GetInt(*json, "step", kMetricsName) : Result<int64_t>(json.status());
  return step.ok() ? std::optional(*step) : std::nullopt;
}

int64_t StepOf(const std::string& line) { return StepIn(line).value_or(0); }

Result<std::string> ReadIfThere(const FileSystem& fs, std::string_view name) {
  Result<std::string> content = ReadFile(fs, name, std::numeric_limits<int64_t>::max());
  if (!content.ok() && content.status().code() == StatusCode::kNotFound) return std::string();
  return content;
}

// The metrics among the lines of a file.
Lines MetricsIn(std::string_view content) {
  Lines lines;
  EachLine(content, [&](std::string_view line, bool whole) {
    if (whole && StepIn(line)) lines.emplace_back(line);
  });
  return lines;
}

}  // namespace

std::string MetricsRewind::Text() const {
  Json head = {{"resumed_step", resumed_step},
               {"sequence", sequence},
               {"last_step", last_step},
               {"of_last_step", of_last_step},
               {"lines", lines.size()}};
  if (!file.empty()) head["file"] = file;
  if (lost > 0) head["lost"] = lost;
  return head.dump() + "\n" + TextOf(lines);
}

std::vector<MetricsRewind> ParseRewinds(std::string_view dropped) {
  std::vector<MetricsRewind> rewinds;
  int64_t missing = 0;  // of the last one's lines
  EachLine(dropped, [&](std::string_view line, bool whole) {
    const Result<Json> json = ParseJson(line, kDroppedMetricsName);
    if (!json.ok() || !whole) return;
    const auto number = [&](const char* key) {
      const Result<int64_t> value = GetInt(*json, key, kDroppedMetricsName);
      return value.ok() ? *value : -1;
    };
    if (GetInt(*json, "step", kDroppedMetricsName).ok()) {
      if (missing <= 0) return;
      rewinds.back().lines.emplace_back(line);
      rewinds.back().lost = --missing;
      return;
    }
    MetricsRewind rewind{number("resumed_step"), number("sequence"), number("last_step"),
                         number("of_last_step")};
    if (rewind.resumed_step < 0 || rewind.sequence < 0 || rewind.of_last_step < 0) return;
    const Result<std::string> file = GetString(*json, "file", kDroppedMetricsName);
    if (file.ok()) rewind.file = *file;
    missing = number("lines");
    rewind.lost = std::max({missing, number("lost"), int64_t{0}});
    rewinds.push_back(std::move(rewind));
  });
  return rewinds;
}

Result<MetricsHistory> MetricsHistory::Read(FileSystem& fs, const RunStart& start, Logger& log) {
  MetricsHistory history(fs, start, log);
  KEEL_ASSIGN_OR_RETURN(history.content_, ReadIfThere(fs, kMetricsName));
  KEEL_ASSIGN_OR_RETURN(history.dropped_, ReadIfThere(fs, kDroppedMetricsName));
  int64_t number = 0;
  EachLine(history.content_, [&](std::string_view line, bool whole) {
    ++number;
    const bool metrics = whole && StepIn(line);
    (metrics ? history.old_ : history.strange_).emplace_back(line);
    if (!metrics && history.strange_.size() == 1) history.first_strange_ = number;
  });
  if (start.step == 0 || start.elsewhere) return history;
  history.known_step_ = start.step;
  history.wanted_ = history.old_;
  const std::vector<MetricsRewind> rewinds = ParseRewinds(history.dropped_);
  for (auto rewind = rewinds.rbegin(); rewind != rewinds.rend(); ++rewind) {
    if (start.StandsOn(rewind->sequence) || !history.TakeBack(*rewind)) break;
  }
  std::erase_if(history.wanted_,
                [&](const std::string& line) { return StepOf(line) > start.step; });
  const auto same = std::ranges::mismatch(history.old_, history.wanted_);
  history.restored_.assign(same.in2, history.wanted_.end());
  // Where the file has the steps that were taken back, other logs have what the file has.
  const bool there = std::ranges::any_of(
      history.wanted_, [&](const std::string& line) { return StepOf(line) > history.known_step_; });
  if (there || !history.restored_.empty()) {
    history.known_step_ =
        history.restored_.empty() ? start.step : StepOf(history.restored_.front()) - 1;
  }
  return history;
}

// False where it cannot be told what there was before.
bool MetricsHistory::TakeBack(const MetricsRewind& rewind) {
  Lines back = rewind.lines;
  if (!rewind.file.empty()) {
    const Result<std::string> earlier = ReadIfThere(*fs_, rewind.file);
    // It was to get that name, and was not: nothing had happened yet.
    if (!earlier.ok() || earlier->empty()) return earlier.ok();
    back = MetricsIn(*earlier);
    wanted_.clear();
  }
  int64_t of_last_step = 0;
  std::erase_if(wanted_, [&](const std::string& line) {
    const int64_t step = StepOf(line);
    return step > rewind.last_step ||
           (step == rewind.last_step && ++of_last_step > rewind.of_last_step);
  });
  known_step_ = std::min(known_step_, rewind.resumed_step);
  if (rewind.lost > 0 || of_last_step < rewind.of_last_step) {
    log_->Warning(
        "{}: lines of steps after {}, as the checkpoint of step {} was saved with them, are not "
        "there any more",
        fs_->Describe(kMetricsName), rewind.last_step, start_.step);
    return false;
  }
  wanted_.insert(wanted_.end(), back.begin(), back.end());
  return true;
}

Status MetricsHistory::Apply() {
  if (start_.step == 0 || start_.elsewhere) return SetAside();
  const bool same = strange_.empty() && wanted_ == old_;
  // Not of the folder's newest checkpoint: what other logs have of later steps is taken back, too.
  const bool back = start_.sequence < start_.newest_sequence;
  if (same && !back) return Status::Ok();
  return Rewrite();
}

Status MetricsHistory::SetAside() {
  if (content_.empty() && start_.newest_sequence == 0) return Status::Ok();
  MetricsRewind rewind{0, start_.newest_sequence};
  for (int n = 1; !content_.empty() && (n == 1 || fs_->Stat(rewind.file).ok()); ++n)
    rewind.file = fmt::format("metrics.{}.jsonl", n);
  // First what is to be done, then the doing, which is seen by the file.
  const Status noted = Append(rewind.Text());
  if (!noted.ok() && noted.code() != StatusCode::kNoSpace) return noted;
  if (rewind.file.empty()) return Status::Ok();
  KEEL_RETURN_IF_ERROR(fs_->Rename(kMetricsName, rewind.file, FileSystem::RenameMode::kNoReplace));
  log_->Info("{} of an earlier run is now {}: this one {}", fs_->Describe(kMetricsName),
             rewind.file, start_.elsewhere ? "goes on from another folder" : "begins anew");
  if (!noted.ok()) {
    log_->Warning(
        "{}: no room to note that: a run that goes back to a checkpoint that was saved before "
        "finds its lines there alone",
        noted.message());
  }
  return fs_->SyncDirectory(".");
}

Status MetricsHistory::Append(std::string text) {
  if (!dropped_.empty() && !dropped_.ends_with('\n')) text.insert(0, "\n");
  const Status added = fs_->Append(kDroppedMetricsName, text);
  if (added.ok()) {
    dropped_ += text;
  } else {
    // The part that did fit.
    (void)::truncate(fs_->Describe(kDroppedMetricsName).c_str(),
                     static_cast<off_t>(dropped_.size()));
  }
  return added;
}

Status MetricsHistory::Rewrite() {
  const auto [ends, begins] = std::ranges::mismatch(old_, wanted_);
  const auto later = static_cast<size_t>(old_.end() - ends);
  MetricsRewind rewind{start_.step, start_.newest_sequence, 0, 0, "", 0, Lines(ends, old_.end())};
  for (auto line = old_.begin(); line != ends; ++line) {
    const int64_t step = StepOf(*line);
    rewind.of_last_step = step == rewind.last_step ? rewind.of_last_step + 1 : 1;
    rewind.last_step = step;
  }
  // 1. What goes is somewhere else before it is gone here. On a full disk it is lost, which is
  // said: a run that has its state goes on.
  const Status added = Append(TextOf(strange_) + rewind.Text());
  const bool no_room = added.code() == StatusCode::kNoSpace;
  if (!no_room) KEEL_RETURN_IF_ERROR(added);
  std::string what;
  if (later > 0) {
    what = restored_.empty()
               ? fmt::format("{} lines of steps after {}, which are done again", later, start_.step)
               : fmt::format("{} lines of steps that were done after step {} was saved", later,
                             start_.step);
  }
  if (!strange_.empty()) {
    what += fmt::format("{}{} lines that are no metrics, the first of them line {}",
                        what.empty() ? "" : ", and ", strange_.size(), first_strange_);
  }
  const std::string path = fs_->Describe(kMetricsName);
  if (!what.empty()) {
    const std::string where = no_room
                                  ? fmt::format("are lost: {}", added.message())
                                  : fmt::format("are now at the end of {}", kDroppedMetricsName);
    const bool bad = no_room || !strange_.empty();
    log_->Write(bad ? LogLevel::kWarning : LogLevel::kInfo,
                fmt::format("{}: {} {}", path, what, where));
  }
  if (!restored_.empty()) {
    log_->Info("{}: {} lines up to step {} are back: an earlier start had taken them out", path,
               restored_.size(), start_.step);
  }
  if (strange_.empty() && wanted_ == old_) return Status::Ok();
  // 2. What stays.
  const std::string stays = TextOf(wanted_);
  const Status replaced = ReplaceFileDurably(*fs_, kMetricsName, stays);
  // A full disk: what is to go is at the end, unless someone has edited the file.
  const bool cut = replaced.code() == StatusCode::kNoSpace && content_.starts_with(stays) &&
                   ::truncate(path.c_str(), static_cast<off_t>(stays.size())) == 0;
  if (!cut) KEEL_RETURN_IF_ERROR(replaced);
  // There is room now for that much.
  if (no_room) {
    rewind.lost = static_cast<int64_t>(std::exchange(rewind.lines, {}).size());
    (void)Append(rewind.Text());
  }
  return Status::Ok();
}

}  // namespace keel::trainer
