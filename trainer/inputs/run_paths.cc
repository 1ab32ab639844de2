#include "trainer/inputs/run_paths.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "checkpoint/format/names.h"
#include "common/files/file_system.h"
#include "trainer/metrics/metrics_file.h"

namespace keel::trainer {

namespace {

// What a run reads and writes in its folder. A pipe would hold it up for ever, and neither that nor
// a device keeps what is written.
Status CheckFiles(const std::string& folder) {
  const auto fs = OpenPosixFileSystem(folder, false, LinkPolicy::kFollow);
  if (!fs.ok()) return Status::Ok();  // not there yet; or whoever opens it says why not
  for (const std::string_view name : {checkpoint::kLockName, checkpoint::kRunIdName,
                                      checkpoint::kRecordsName, kConfigName, kMetricsName}) {
    const Result<FileInfo> info = (*fs)->Stat(name);
    if (!info.ok() || info->kind == FileKind::kFile) continue;
    return Status(
        StatusCode::kConfig,
        fmt::format("trainer.default_local_dir: {} is {}, expected a regular file or nothing: move "
                    "it away, or give another folder",
                    (*fs)->Describe(name),
                    info->kind == FileKind::kDirectory ? "a directory" : "a pipe or device"));
  }
  return Status::Ok();
}

// That a folder is one, or can become one: nothing above it is a file.
Status CheckFolder(const std::string& key, const std::string& folder) {
  std::error_code error;
  if (IsUnexpanded(folder) && !std::filesystem::exists(folder, error)) {
    return Status(StatusCode::kConfig,
                  fmt::format("{}: {} stands as it is, for no shell has put anything in the place "
                              "of ~ or of a variable: write the folder out",
                              key, folder));
  }
  std::filesystem::path there = std::filesystem::absolute(folder, error);
  while (!std::filesystem::exists(there, error) && there.has_relative_path())
    there = there.parent_path();
  if (std::filesystem::is_directory(there, error)) return Status::Ok();
  return Status(StatusCode::kConfig, fmt::format("{}: {} is no directory and cannot be one: {} is "
                                                 "no directory; give another folder",
                                                 key, folder, there.string()));
}

Status CheckFolders(const TrainerSection& trainer) {
  KEEL_RETURN_IF_ERROR(CheckFolder("trainer.default_local_dir", trainer.default_local_dir));
  if (trainer.task != TaskKind::kRl) return Status::Ok();
  if (trainer.rollout_data_dir)
    KEEL_RETURN_IF_ERROR(CheckFolder("trainer.rollout_data_dir", *trainer.rollout_data_dir));
  if (trainer.validation_data_dir)
    KEEL_RETURN_IF_ERROR(CheckFolder("trainer.validation_data_dir", *trainer.validation_data_dir));
  std::error_code error;
  if (trainer.rollout_replay_dir &&
      !std::filesystem::is_directory(*trainer.rollout_replay_dir, error)) {
    return Status(
        StatusCode::kNotFound,
        fmt::format("trainer.rollout_replay_dir: {}: there is no such directory; give the "
                    "trainer.rollout_data_dir of an earlier run",
                    *trainer.rollout_replay_dir));
  }
  return Status::Ok();
}

}  // namespace

bool IsUnexpanded(std::string_view path) {
  return path == "~" || path.starts_with("~/") || path.find('$') != std::string_view::npos;
}

Status CheckRunPaths(const Config& config) {
  const std::string& folder = config.trainer.default_local_dir;
  KEEL_RETURN_IF_ERROR(CheckFolders(config.trainer));
  if (const auto run = OpenPosixFileSystem(folder, false);
      run.ok() && (*run)->Stat(checkpoint::kManifestName).ok()) {
    return Status(
        StatusCode::kConfig,
        fmt::format("trainer.default_local_dir: {} is a checkpoint itself, not the folder of "
                    "a run: give the folder that holds its global_step_<N>",
                    folder));
  }
  KEEL_RETURN_IF_ERROR(CheckFiles(folder));
  if (config.trainer.resume_mode != ResumeKind::kPath) return Status::Ok();
  const auto fs = OpenPosixFileSystem(*config.trainer.resume_from_path, false);
  if (!fs.ok()) return fs.status().WithContext("trainer.resume_from_path");
  return (*fs)
      ->Stat(checkpoint::kManifestName)
      .status()
      .WithContext("trainer.resume_from_path: expected a checkpoint, <run folder>/global_step_<N>");
}

}  // namespace keel::trainer
