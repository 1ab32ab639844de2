#include "tools/inference/named_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "checkpoint/format/names.h"
#include "common/files/downloaded.h"
#include "common/files/file_system.h"
#include "tools/counted_reads.h"
#include "tools/inference/step_weights.h"
#include "trainer/inputs/adapter_files.h"
#include "trainer/inputs/model_weights.h"

namespace keel::tools {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostText = int64_t{64} << 20;

Result<std::string> ReadText(const std::string& folder, const std::string& name) {
  KEEL_ASSIGN_OR_RETURN(const auto files, OpenPosixFileSystem(folder, false, LinkPolicy::kFollow));
  return ReadDownloaded(*files, name, kMostText);
}

// Where the model lies that the adapters of `folder` stand beside.
Result<std::string> BaseOf(const trainer::AdapterConfig& adapters, const std::string& folder,
                           const std::string& given) {
  const std::string base = given.empty() ? adapters.base : given;
  const std::string where = fmt::format("{}/{}", folder, checkpoint::kAdapterConfigName);
  if (base.empty()) {
    return Status(StatusCode::kNotFound,
                  fmt::format("{}: base_model_name_or_path is null: the adapters stand beside a "
                              "model that lies nowhere, or nobody says where: give --base",
                              where));
  }
  std::error_code ignored;
  if (fs::is_directory(base, ignored)) return base;
  return Status(StatusCode::kNotFound,
                given.empty()
                    ? fmt::format("{}: base_model_name_or_path is {}: there is no such directory; "
                                  "--base says where the model lies",
                                  where, base)
                    : fmt::format("--base: {}: there is no such directory", base));
}

Status OpenAdapted(const std::string& folder, const NamedModelOptions& options,
                   trainer::ModelOptions how, NamedModel* model) {
  const std::string where = fmt::format("{}/{}", folder, checkpoint::kAdapterConfigName);
  KEEL_ASSIGN_OR_RETURN(const std::string text,
                        ReadText(folder, std::string(checkpoint::kAdapterConfigName)));
  KEEL_ASSIGN_OR_RETURN(trainer::AdapterConfig adapters, trainer::ParseAdapterConfig(text, where));
  KEEL_ASSIGN_OR_RETURN(model->base, BaseOf(adapters, folder, options.base));
  trainer::TakeTextBesideAdapters(folder, &how.tokenizer);
  how.path_key = options.base.empty() ? where : "--base";
  KEEL_ASSIGN_OR_RETURN(model->source,
                        trainer::ResolveModel(model->base, Json::object(), DType::kF32, how));
  // Where the tensors are PEFT's they say which modules there are.
  if (!model->is_step) {
    KEEL_ASSIGN_OR_RETURN(adapters, trainer::OpenAdapters(folder, model->source.config));
  }
  model->source.config.adapter = adapters.spec;
  return Status::Ok();
}

}  // namespace

Result<NamedModel> OpenNamedModel(const std::string& path, const NamedModelOptions& options) {
  NamedModel model;
  model.path = path;
  model.is_step = IsCheckpoint(path);
  trainer::ModelOptions how;
  how.path_key = options.key;
  how.tokenizer.chat.todays_date = options.todays_date;
  std::string folder = path;
  if (model.is_step) {
    KEEL_ASSIGN_OR_RETURN(folder, ModelFolderOf(path));
  }
  if (trainer::HasAdapterFiles(folder)) {
    KEEL_RETURN_IF_ERROR(OpenAdapted(folder, options, how, &model));
    KEEL_ASSIGN_OR_RETURN(model.base_is, trainer::ReadAdapterBase(folder));
  } else {
    KEEL_ASSIGN_OR_RETURN(model.source,
                          trainer::ResolveModel(folder, Json::object(), DType::kF32, how));
    if (!options.base.empty()) {
      return Status(StatusCode::kUsage,
                    fmt::format("--base is of adapters, and {} has no {}: leave it out", path,
                                checkpoint::kAdapterConfigName));
    }
  }
  // Adapters of a run compute beside what they were trained beside.
  model.dtype =
      model.base_is ? model.base_is->dtype : model.source.config.dtype.value_or(DType::kF32);
  if (model.is_step) {
    KEEL_ASSIGN_OR_RETURN(model.dtype, StepDType(path));
  }
  return model;
}

Status ReadNamedWeights(const NamedModel& model, const ShardTable& own, const ShardTable& base,
                        Progress* bar) {
  const auto import = [&](const std::string& directory, const ShardTable& table) -> Status {
    KEEL_ASSIGN_OR_RETURN(const auto files,
                          OpenPosixFileSystem(directory, false, LinkPolicy::kFollow));
    std::optional<CountedReads> counted;
    if (bar != nullptr) counted.emplace(*files, *bar);
    FileSystem& source = counted ? static_cast<FileSystem&>(*counted) : *files;
    return trainer::ImportWeights(source, model.source.config, model::Head::kVocabulary, table);
  };
  if (model.has_adapters()) {
    KEEL_RETURN_IF_ERROR(import(model.base, base));
    return ReadNamedAdapters(model, own, bar);
  }
  return model.is_step ? ReadStepWeights(model.path, own, bar) : import(model.path, own);
}

Status ReadNamedAdapters(const NamedModel& model, const ShardTable& own, Progress* bar) {
  return model.is_step ? ReadStepWeights(model.path, own, bar)
                       : trainer::ImportAdapters(model.path, model.source.config, own);
}

Status CheckBaseDigest(const NamedModel& model, uint64_t found) {
  if (found == model.base_is->digest) return Status::Ok();
  return Status(StatusCode::kConfig,
                fmt::format("{}: the weights have digest {:016x}, those beside which the adapters "
                            "of {} were trained {:016x}: it is another model; --base says where "
                            "that one lies",
                            model.base, found, model.path, model.base_is->digest));
}

Result<trainer::SharedFacts> WeightFacts(const NamedModel& model) {
  trainer::SharedFacts facts;
  if (model.has_adapters()) {
    KEEL_ASSIGN_OR_RETURN(facts["weights of the model that adapters stand beside"],
                          trainer::WeightsFingerprint(model.base));
  }
  std::string& own = facts["weights of --model"];
  if (model.is_step) {
    KEEL_ASSIGN_OR_RETURN(own, StepFingerprint(model.path));
  } else if (model.has_adapters()) {
    KEEL_ASSIGN_OR_RETURN(own, trainer::AdapterFingerprint(model.path));
  } else {
    KEEL_ASSIGN_OR_RETURN(own, trainer::WeightsFingerprint(model.path));
  }
  return facts;
}

}  // namespace keel::tools
