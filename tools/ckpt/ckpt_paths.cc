#include "tools/ckpt/ckpt_paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <ostream>
#include <thread>
#include <utility>

#include "checkpoint/format/names.h"
#include "checkpoint/run/catalog.h"
#include "common/text.h"

namespace keel::tools {
namespace {

// What whoever has a run directory writes before there is a step in it, where it holds nothing
// else and nobody has it.
void RemoveFilesOfNoStep(FileSystem& fs) {
  const auto files = fs.List(".");
  if (!files.ok() || files->empty()) return;
  for (const FileInfo& info : *files) {
    const bool ours = info.name == checkpoint::kLockName || info.name == checkpoint::kRunIdName ||
                      info.name == checkpoint::kRecordsName;
    if (!ours || info.kind != FileKind::kFile) return;
  }
  const auto lock = fs.Lock(checkpoint::kLockName, "keel ckpt");
  if (!lock.ok()) return;
  for (const FileInfo& info : *files) (void)fs.Remove(info.name);
}

}  // namespace

Result<StepPath> OpenStep(const std::string& path) {
  std::error_code error;
  std::filesystem::path absolute = std::filesystem::absolute(path, error).lexically_normal();
  if (absolute.filename().empty()) absolute = absolute.parent_path();  // a trailing slash
  if (absolute.filename().empty() || error) {
    return Status(StatusCode::kUsage, fmt::format("'{}' is not a step's directory", path));
  }
  if (!IsStep(path) && !checkpoint::ParseStepDirectory(absolute.filename().string())) {
    for (const auto& entry : std::filesystem::directory_iterator(absolute, error)) {
      if (!checkpoint::ParseStepDirectory(entry.path().filename().string())) continue;
      return Status(StatusCode::kNotFound,
                    fmt::format("{} is the folder of a run: name a step of it, such as {}",
                                absolute.string(), entry.path().string()));
    }
    if (std::filesystem::is_directory(absolute, error)) {
      return Status(StatusCode::kNotFound,
                    fmt::format("{} is no step of a run, which has a manifest.json: name one, such "
                                "as RUN/global_step_9",
                                absolute.string()));
    }
  }
  KEEL_ASSIGN_OR_RETURN(std::unique_ptr<FileSystem> fs,
                        OpenPosixFileSystem(absolute.parent_path().string(), false));
  return StepPath{std::move(fs), absolute.filename().string()};
}

Result<std::unique_ptr<FileSystem>> OpenRun(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status there = std::filesystem::status(path, error);
  if (std::filesystem::exists(there) && !std::filesystem::is_directory(there)) {
    return Status(StatusCode::kNotFound,
                  fmt::format("{}: is no directory, expected that of a run or of a step", path));
  }
  return OpenPosixFileSystem(path, false);
}

Result<NewDirectory> OpenParentOf(const std::string& path) {
  std::filesystem::path target = std::filesystem::absolute(path).lexically_normal();
  if (target.filename().empty()) target = target.parent_path();  // a trailing slash
  KEEL_ASSIGN_OR_RETURN(std::unique_ptr<FileSystem> parent,
                        OpenPosixFileSystem(target.parent_path().string(), true));
  return NewDirectory{std::move(parent), target.filename().string(), target.string()};
}

Status CheckTarget(const std::string& path) {
  std::error_code error;
  const std::filesystem::path target = std::filesystem::absolute(path, error).lexically_normal();
  if (path.empty() || error)
    return Status(StatusCode::kUsage, fmt::format("'{}' is no place to write to", path));
  for (std::filesystem::path above = target;; above = above.parent_path()) {
    if (IsStep(above.string())) {
      return Status(StatusCode::kUsage,
                    fmt::format("{} is inside a checkpoint, {}: choose another place",
                                target.string(), above.string()));
    }
    if (above == above.parent_path()) return Status::Ok();
  }
}

FolderToFill::FolderToFill(const std::string& path) {
  std::error_code error;
  std::filesystem::path missing = std::filesystem::absolute(path, error).lexically_normal();
  if (missing.filename().empty()) missing = missing.parent_path();  // a trailing slash
  // A link that leads nowhere is there.
  while (missing.has_filename() && std::filesystem::symlink_status(missing, error).type() ==
                                       std::filesystem::file_type::not_found) {
    made_.push_back(missing.string());
    missing = missing.parent_path();
  }
}

Status CheckIsLatest(const FileSystem& run, std::string_view path, int64_t step,
                     std::string_view what) {
  KEEL_ASSIGN_OR_RETURN(const auto entries, checkpoint::ListCheckpoints(run));
  KEEL_RETURN_IF_ERROR(checkpoint::CheckAllRead(run, entries));
  for (const checkpoint::CatalogEntry& entry : entries) {
    if (!entry.manifest || entry.step <= step) continue;
    return Status(StatusCode::kUsage,
                  fmt::format("{} holds {} already, and a run in it would go back to the {} step "
                              "{}: of several steps give the earliest first, or choose another "
                              "folder",
                              path, entry.directory, what, step));
  }
  return Status::Ok();
}

FolderToFill::~FolderToFill() {
  if (made_.empty()) return;
  if (const auto fs = OpenPosixFileSystem(made_.front(), false); fs.ok()) RemoveFilesOfNoStep(**fs);
  std::error_code error;
  for (const std::string& folder : made_) {
    if (!std::filesystem::remove(folder, error)) return;  // not empty
  }
}

bool IsStep(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(
      std::filesystem::path(path) / std::string(checkpoint::kManifestName), error);
}

bool IsNamedAsStep(const std::string& path) {
  std::error_code error;
  std::filesystem::path absolute = std::filesystem::absolute(path, error).lexically_normal();
  if (absolute.filename().empty()) absolute = absolute.parent_path();  // a trailing slash
  return std::filesystem::is_directory(absolute, error) &&
         checkpoint::ParseStepDirectory(absolute.filename().string()).has_value();
}

std::string Shown(std::string_view text) { return Printable(text, std::string_view::npos); }

// An infinite number has no name in JSON: it reads as null.
std::string ShownJson(const Json& json) {
  return json.dump(2, ' ', true, Json::error_handler_t::replace);
}

int Cores() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

std::string HumanBytes(int64_t bytes) {
  const char* const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < std::size(units)) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, units[unit]);
}

int Fail(const Status& status, std::ostream& err) {
  err << "keel ckpt: " << PrintableLines(status.ToString()) << "\n";
  return ExitCodeFor(status.code());
}

}  // namespace keel::tools
