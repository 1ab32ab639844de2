// keel ckpt ls: the steps of a run.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <system_error>
#include <vector>

#include "checkpoint/format/names.h"
#include "checkpoint/format/records.h"
#include "checkpoint/read/step_reader.h"
#include "checkpoint/read/verifier.h"
#include "checkpoint/run/catalog.h"
#include "checkpoint/run/pin.h"
#include "common/clock.h"
#include "tools/ckpt/ckpt_commands.h"
#include "tools/ckpt/ckpt_paths.h"

namespace keel::tools {
namespace {

// "3 min", "2 d"; "?" when the manifest's time is not one.
std::string Age(const std::string& created) {
  std::tm time{};
  if (strptime(created.c_str(), "%Y-%m-%dT%H:%M:%SZ", &time) == nullptr) return "?";
  const auto now = std::chrono::system_clock::to_time_t(SystemClock().Wall());
  const int64_t seconds = std::max<int64_t>(0, now - timegm(&time));
  if (seconds < 120) return fmt::format("{} s", seconds);
  if (seconds < 7200) return fmt::format("{} min", seconds / 60);
  if (seconds < 172800) return fmt::format("{} h", seconds / 3600);
  return fmt::format("{} d", seconds / 86400);
}

std::string LayoutText(const Json& layout) {
  if (!layout.is_object()) return "-";
  std::string text;
  for (const auto& [key, value] : layout.items()) {
    if (!value.is_number()) continue;
    text += fmt::format("{}{}{}", text.empty() ? "" : " ", Shown(key), value.dump());
  }
  return text.empty() ? "-" : text;
}

// save id -> seconds that training was blocked, of the saves that checkpoints.jsonl tells of.
std::map<std::string, double> BlockedSeconds(const FileSystem& fs) {
  std::map<std::string, double> blocked;
  (void)checkpoint::VisitRecords(fs, [&](const Json& record) {
    const Result<std::string> id = GetString(record, "save_id", "");
    const Result<double> seconds = GetDouble(record, "blocked_s", "");
    if (id.ok() && seconds.ok()) blocked[*id] = *seconds;
  });
  return blocked;
}

struct Row {
  const checkpoint::CatalogEntry* entry = nullptr;
  Status valid;                // manifest, index, and all files with their sizes
  bool unread = false;         // it is not known whether it is valid, for a reason in this process
  std::optional<bool> pinned;  // nothing: that cannot be told
  std::optional<double> blocked_s;
};

std::vector<Row> MakeRows(const FileSystem& fs,
                          const std::vector<checkpoint::CatalogEntry>& entries) {
  const std::map<std::string, double> blocked = BlockedSeconds(fs);
  std::vector<Row> rows;
  for (const checkpoint::CatalogEntry& entry : entries) {
    Row row;
    row.entry = &entry;
    row.valid =
        entry.manifest ? checkpoint::StepReader::Open(fs, entry.directory).status() : entry.status;
    row.unread = checkpoint::ReasonInReader(row.valid) != StatusCode::kOk;
    // A run that goes on may be removing it.
    if (!row.valid.ok() && fs.Stat(entry.directory).status().code() == StatusCode::kNotFound)
      continue;
    if (const auto pin = checkpoint::LookForPin(fs, entry.directory); pin.ok()) row.pinned = *pin;
    if (entry.manifest) {
      const auto found = blocked.find(entry.manifest->save_id);
      if (found != blocked.end()) row.blocked_s = found->second;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

Json ToJson(const Row& row) {
  const checkpoint::CatalogEntry& entry = *row.entry;
  Json one = {{"directory", entry.directory},
              {"step", entry.step},
              {"valid_manifest", entry.manifest.has_value()},
              {"valid", row.unread ? Json() : Json(row.valid.ok())},
              {"pinned", row.pinned ? Json(*row.pinned) : Json()}};
  if (entry.manifest) {
    const checkpoint::Manifest& manifest = *entry.manifest;
    one["bytes"] = manifest.TotalBytes();
    one["layout"] = manifest.layout;
    one["contents"] = manifest.contents.Names();
    one["created"] = manifest.created;
    one["sequence"] = manifest.sequence;
    one["run_id"] = manifest.run_id;
    one["save_id"] = manifest.save_id;
    one["metric"] = manifest.metric ? Json(*manifest.metric) : Json(nullptr);
    one["blocked_s"] = row.blocked_s ? Json(*row.blocked_s) : Json(nullptr);
  }
  if (!row.valid.ok()) one["reason"] = row.valid.message();
  return one;
}

// What a symbolic link leads to. To list is no risk; all else refuses a link in a step's place.
Result<std::string> Followed(const std::string& path) {
  std::error_code error;
  std::filesystem::path link = std::filesystem::absolute(path, error).lexically_normal();
  if (link.filename().empty()) link = link.parent_path();  // a trailing slash
  if (!std::filesystem::is_symlink(link, error)) return path;
  const std::filesystem::path target = std::filesystem::canonical(link, error);
  if (!error) return target.string();
  return Status(StatusCode::kNotFound,
                fmt::format("{} is a symbolic link to {}, which cannot be followed: {}", path,
                            std::filesystem::read_symlink(link).string(), error.message()));
}

// The checkpoints of a run; of a checkpoint's own directory that one. `fs` is the run's directory.
Result<std::vector<checkpoint::CatalogEntry>> EntriesOf(const std::string& directory, bool of_one,
                                                        std::unique_ptr<FileSystem>* fs) {
  if (!of_one) {
    KEEL_ASSIGN_OR_RETURN(*fs, OpenRun(directory));
    return checkpoint::ListCheckpoints(**fs);
  }
  KEEL_ASSIGN_OR_RETURN(StepPath place, OpenStep(directory));
  *fs = std::move(place.fs);
  checkpoint::CatalogEntry entry;
  entry.directory = place.directory;
  Result<checkpoint::Manifest> manifest = checkpoint::ReadManifest(**fs, place.directory);
  entry.status = manifest.status();
  if (manifest.ok()) entry.manifest = std::move(manifest).value();
  entry.step = entry.manifest ? entry.manifest->step
                              : checkpoint::ParseStepDirectory(place.directory).value_or(0);
  return std::vector<checkpoint::CatalogEntry>{std::move(entry)};
}

// What saves have set aside, which nothing removes and no rule counts; "" for none.
std::string SetAsideText(const FileSystem& fs) {
  const auto names = fs.List(".");
  if (!names.ok()) return {};
  int64_t count = 0, bytes = 0, unread = 0;
  for (const FileInfo& info : *names) {
    if (info.kind != FileKind::kDirectory || !checkpoint::IsSetAside(info.name)) continue;
    ++count;
    const Result<checkpoint::Manifest> manifest = checkpoint::ReadManifest(fs, info.name);
    if (manifest.ok()) {
      bytes += manifest->TotalBytes();
    } else {
      ++unread;
    }
  }
  if (count == 0) return {};
  return fmt::format(
      "and {} set aside (global_step_*.set-aside-*), {}{}: nothing removes them but you\n", count,
      HumanBytes(bytes), unread > 0 ? fmt::format(" and {} of unknown size", unread) : "");
}

std::string DurationText(double seconds) {
  return seconds < 1 ? fmt::format("{:.1f} ms", 1e3 * seconds) : fmt::format("{:.2f} s", seconds);
}

std::vector<std::string> Cells(const Row& row) {
  const checkpoint::CatalogEntry& entry = *row.entry;
  const std::string pinned = !row.pinned ? "?" : *row.pinned ? "pinned" : "";
  const std::string valid = row.unread ? "unreadable" : row.valid.ok() ? "yes" : "NO";
  if (!entry.manifest) return {Shown(entry.directory), "-", "-", "-", "-", "-", "-", pinned, valid};
  const checkpoint::Manifest& manifest = *entry.manifest;
  return {Shown(entry.directory),
          HumanBytes(manifest.TotalBytes()),
          LayoutText(manifest.layout),
          Age(manifest.created),
          fmt::format("{}", fmt::join(manifest.contents.Names(), ",")),
          row.blocked_s ? DurationText(*row.blocked_s) : "-",
          manifest.metric ? fmt::format("{:.5g}", *manifest.metric) : "-",
          pinned,
          valid};
}

// Columns as wide as their widest cell; numbers to the right.
void PrintTable(const std::vector<std::vector<std::string>>& table, std::ostream& out) {
  constexpr bool kRight[] = {false, true, false, true, false, true, true, false, false};
  std::vector<size_t> widths(table.front().size(), 0);
  for (const std::vector<std::string>& cells : table) {
    for (size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], cells[i].size());
  }
  for (const std::vector<std::string>& cells : table) {
    std::string line;
    for (size_t i = 0; i < cells.size(); ++i) {
      if (widths[i] == 0) continue;
      line += kRight[i] ? fmt::format("{:>{}}  ", cells[i], widths[i])
                        : fmt::format("{:<{}}  ", cells[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << "\n";
  }
}

}  // namespace

int CkptLs(const CkptLsOptions& options, std::ostream& out, std::ostream& err) {
  const auto directory = Followed(options.directory);
  if (!directory.ok()) return Fail(directory.status(), err);
  std::unique_ptr<FileSystem> fs;
  const bool of_one = IsStep(*directory) || IsNamedAsStep(*directory);
  const auto entries = EntriesOf(*directory, of_one, &fs);
  if (!entries.ok()) return Fail(entries.status(), err);
  const std::vector<Row> rows = MakeRows(*fs, *entries);
  if (options.json) {
    Json list = Json::array();
    for (const Row& row : rows) list.push_back(ToJson(row));
    out << ShownJson(list) << "\n";
    return 0;
  }
  if (rows.empty()) {
    out << "no checkpoints in " << Shown(options.directory) << "\n" << SetAsideText(*fs);
    return 0;
  }
  std::vector<std::vector<std::string>> table = {
      {"STEP", "SIZE", "LAYOUT", "AGE", "CONTENTS", "BLOCKED", "METRIC", "PINNED", "VALID"}};
  for (const Row& row : rows) table.push_back(Cells(row));
  PrintTable(table, out);
  for (const Row& row : rows) {
    if (!row.valid.ok()) {
      out << fmt::format("{} {}: {}\n", Shown(row.entry->directory),
                         row.unread ? "cannot be read" : "is not a valid checkpoint",
                         Shown(row.valid.message()));
    }
  }
  if (!of_one) out << SetAsideText(*fs);
  return 0;
}

}  // namespace keel::tools
