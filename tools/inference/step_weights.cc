#include "tools/inference/step_weights.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "checkpoint/base/coordinator.h"
#include "checkpoint/base/requests.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/format/names.h"
#include "checkpoint/read/step_reader.h"
#include "common/clock.h"
#include "common/files/file_system.h"
#include "common/hash.h"
#include "common/log.h"
#include "tools/counted_reads.h"

namespace keel::tools {

namespace {

namespace fs = std::filesystem;

constexpr const char* kRole = "actor";

// The folder that holds the step, opened, and the step's name in it.
struct Place {
  std::unique_ptr<FileSystem> files;
  std::string step;
};
Result<Place> Open(const std::string& step) {
  fs::path path = fs::absolute(step).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();  // a trailing slash
  KEEL_ASSIGN_OR_RETURN(auto files, OpenPosixFileSystem(path.parent_path().string(), false));
  return Place{std::move(files), path.filename().string()};
}

}  // namespace

bool IsCheckpoint(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(fs::path(path) / std::string(checkpoint::kManifestName), error);
}

Result<std::string> ModelFolderOf(const std::string& step) {
  const fs::path folder = fs::path(step) / kRole / "huggingface";
  std::error_code error;
  if (fs::is_regular_file(folder / "config.json", error)) return folder.string();
  return Status(StatusCode::kNotFound,
                fmt::format("{}: the checkpoint has no {}/huggingface/config.json, so that nobody "
                            "knows its model",
                            step, kRole));
}

Result<DType> StepDType(const std::string& step) {
  KEEL_ASSIGN_OR_RETURN(const Place place, Open(step));
  KEEL_ASSIGN_OR_RETURN(const auto reader, checkpoint::StepReader::Open(*place.files, place.step));
  KEEL_ASSIGN_OR_RETURN(const ShardTable tensors, reader.Tensors(fmt::format("{}/model", kRole)));
  if (tensors.tensors().empty()) {
    return Status(StatusCode::kNotFound,
                  fmt::format("{}: the checkpoint holds no weights of {}", step, kRole));
  }
  return tensors.tensors().front().dtype;
}

Result<std::string> StepFingerprint(const std::string& step) {
  constexpr int64_t kMostBytes = int64_t{256} << 20;
  KEEL_ASSIGN_OR_RETURN(const auto files, OpenPosixFileSystem(step, false));
  KEEL_ASSIGN_OR_RETURN(const std::string manifest,
                        ReadFile(*files, std::string(checkpoint::kManifestName), kMostBytes));
  return Hash128(std::as_bytes(std::span(manifest))).ToHex();
}

Status ReadStepWeights(const std::string& step, const ShardTable& table, Progress* bar) {
  KEEL_ASSIGN_OR_RETURN(const Place place, Open(step));
  LogOptions quiet;
  quiet.level = LogLevel::kWarning;
  Logger log(quiet);
  std::optional<CountedReads> counted;
  if (bar != nullptr) counted.emplace(*place.files, *bar);
  FileSystem& files = counted ? static_cast<FileSystem&>(*counted) : *place.files;
  checkpoint::LocalCoordinatorHub alone(1);
  checkpoint::Checkpointer checkpointer(files, alone.rank(0), SystemClock(), log, {});
  checkpoint::LoadRequest request;
  request.resume_path = place.step;
  request.contents = {true, false, false, false};
  request.roles.emplace_back();
  request.roles.back().name = kRole;
  request.roles.back().model = table;
  request.in_place = true;
  request.scratch = true;
  return checkpointer.Load(request).status();
}

}  // namespace keel::tools
