#include "tools/report/run_status.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "checkpoint/format/names.h"
#include "checkpoint/run/catalog.h"
#include "common/files/file_system.h"
#include "trainer/desk/desk_client.h"
#include "trainer/desk/desk_file.h"
#include "trainer/metrics/step_parts.h"

namespace keel::tools {

namespace {

using trainer::desk::DeskClient;

// Behind which the last line of metrics.jsonl begins.
constexpr std::streamoff kTailBytes = 1 << 20;

// Not of a validation, a save or a load.
bool IsOfStep(const Json& data) {
  return std::ranges::any_of(trainer::kStepSeconds,
                             [&](std::string_view name) { return data.contains(name); });
}

// The last whole line with a step; null: none.
Result<Json> LastStep(const std::string& folder) {
  const std::string path = folder + "/metrics.jsonl";
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  if (kind == std::filesystem::file_type::not_found) return Json(nullptr);
  if (kind == std::filesystem::file_type::none)
    return Status::FromErrno(error.value(), "stat", path);
  // A pipe would be waited for.
  if (kind != std::filesystem::file_type::regular)
    return Status(StatusCode::kInvalidData, path + ": expected a file");
  errno = 0;
  std::ifstream file(path, std::ios::ate);
  if (!file) return Status::FromErrno(errno, "open", path);
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kTailBytes));
  Json last;
  for (std::string line; std::getline(file, line);) {
    const Result<Json> record = ParseJson(line, "metrics.jsonl");
    if (record.ok() && record->is_object() && record->contains("step") &&
        record->contains("data") && IsOfStep((*record)["data"]))
      last = *record;
  }
  return last;
}

// What the first seconds of a run leave in its folder.
bool IsOfRun(const FileInfo& entry) {
  return entry.name == checkpoint::kLockName || entry.name == "metrics.jsonl" ||
         entry.name == trainer::desk::kDeskFileName || checkpoint::ParseStepDirectory(entry.name);
}

Result<Json> AskDesk(const trainer::desk::DeskAddress& address,
                     std::chrono::milliseconds patience) {
  KEEL_ASSIGN_OR_RETURN(const std::unique_ptr<DeskClient> desk,
                        DeskClient::Connect(address, patience, patience));
  KEEL_RETURN_IF_ERROR(desk->Send(trainer::desk::Ask{}));
  KEEL_ASSIGN_OR_RETURN(const auto message, desk->Receive(patience));
  const auto* told = message ? std::get_if<trainer::desk::Told>(&*message) : nullptr;
  if (told == nullptr) return Status(StatusCode::kDeadlineExceeded, "the desk does not answer");
  return ParseJson(told->state, "the desk's answer");
}

}  // namespace

Result<Json> DeskStatus(const std::string& folder, std::chrono::milliseconds patience) {
  const auto address = trainer::desk::ReadDeskFile(folder);
  if (!address.ok()) {
    if (address.status().code() == StatusCode::kNotFound) return Json(nullptr);
    return address.status();
  }
  const Result<Json> desk = AskDesk(*address, patience);
  if (desk.ok()) return *desk;
  return Json::object(
      {{"problem", fmt::format("{}; the trainers are gone, or this machine cannot reach theirs",
                               desk.status().message())}});
}

Result<Json> RunStatus(const std::string& folder, std::chrono::milliseconds patience) {
  KEEL_ASSIGN_OR_RETURN(const auto files, OpenPosixFileSystem(folder, false));
  KEEL_ASSIGN_OR_RETURN(const std::vector<FileInfo> entries, files->List("."));
  if (std::ranges::none_of(entries, IsOfRun)) {
    return Status(StatusCode::kNotFound,
                  fmt::format("{}: no run has written here: neither metrics.jsonl nor a checkpoint "
                              "is there; a run's folder is its trainer.default_local_dir",
                              folder));
  }
  KEEL_ASSIGN_OR_RETURN(Json step, LastStep(folder));
  Json state = {{"run", folder},
                {"metrics", files->Stat("metrics.jsonl").ok()},
                {"step", std::move(step)},
                {"checkpoint", nullptr},
                {"desk", nullptr}};
  // The newest commit comes first, if there is any.
  KEEL_ASSIGN_OR_RETURN(const auto checkpoints, checkpoint::ListCheckpoints(*files));
  if (!checkpoints.empty() && checkpoints.front().manifest)
    state["checkpoint"] = checkpoints.front().step;
  KEEL_ASSIGN_OR_RETURN(state["desk"], DeskStatus(folder, patience));
  return state;
}

}  // namespace keel::tools
