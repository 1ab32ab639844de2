#include "checkpoint/tools/hf_import.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "checkpoint/base/coordinator.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/format/names.h"
#include "checkpoint/hf/hf_check.h"
#include "checkpoint/hf/hf_model_dir.h"
#include "checkpoint/run/run_identity.h"
#include "common/files/downloaded.h"
#include "common/files/template_files.h"

namespace keel::checkpoint {
namespace {

constexpr int64_t kMaxCopied = int64_t{64} << 20;

// Configuration and tokenizer: small text files beside the weights.
bool IsDocument(const FileInfo& info) {
  const std::string_view name = info.name;
  if (info.size > kMaxCopied || name.starts_with('.') || name.ends_with(".index.json"))
    return false;
  return name.ends_with(".json") || name.ends_with(".jinja") || name == "merges.txt" ||
         name == "vocab.txt" || name == "tokenizer.model";
}

// What is no regular file is refused: it cannot be copied, and the model would lack it.
Status AddDocuments(const FileSystem& hf, const HfImportOptions& options, SaveRequest* request) {
  KEEL_ASSIGN_OR_RETURN(const std::vector<FileInfo> files, hf.List("."));
  for (const FileInfo& info : files) {
    if (!IsDocument(info)) continue;
    const bool replaced = !options.config_json.empty() && info.name == "config.json";
    if (!options.config_json.empty() && info.name.ends_with("processor_config.json")) continue;
    KEEL_ASSIGN_OR_RETURN(std::string text, ReadDownloadedOrEmpty(hf, info.name, kMaxCopied));
    request->documents.push_back({fmt::format("{}/huggingface/{}", options.role, info.name),
                                  replaced ? options.config_json : std::move(text), false});
  }
  KEEL_ASSIGN_OR_RETURN(const std::vector<std::string> templates, MoreTemplateFiles(hf));
  for (const std::string& name : templates) {
    KEEL_ASSIGN_OR_RETURN(std::string text, ReadDownloadedOrEmpty(hf, name, kMaxCopied));
    request->documents.push_back(
        {fmt::format("{}/huggingface/{}", options.role, name), std::move(text), false});
  }
  return Status::Ok();
}

}  // namespace

Result<SaveRecord> ImportHuggingFace(const FileSystem& hf, const ModelTensors& model,
                                     FileSystem& run, const Clock& clock, Logger& log,
                                     const HfImportOptions& options) {
  if (run.Stat(StepDirectory(options.step)).ok()) {
    return Status(StatusCode::kAlreadyExists,
                  fmt::format("{}: exists; an import does not overwrite",
                              run.Describe(StepDirectory(options.step))));
  }
  KEEL_ASSIGN_OR_RETURN(const HfModelDir directory, OpenTensors(hf, ".", model));
  SaveRequest request;
  KEEL_RETURN_IF_ERROR(AddDocuments(hf, options, &request));
  std::vector<std::unique_ptr<std::byte[]>> memory;
  std::map<DType, int64_t> widened;
  RoleState role;
  role.name = options.role;
  for (const TensorInfo& wanted : model.needed) {
    const int at = directory.source().Find(wanted.name);
    if (at < 0) {  // one that may be missing
      log.Warning(
          "{}: has no {}: a run that resumes from the import needs it in "
          "load_allow_missing, and begins with its own",
          directory.where(), wanted.name);
      continue;
    }
    TensorInfo tensor = directory.source().tensors()[static_cast<size_t>(at)];
    if (const DType of_file = tensor.dtype; of_file == DType::kF16 || of_file == DType::kF64) {
      // No run has them.
      tensor.dtype = DType::kF32;
      ++widened[of_file];
    }
    const int64_t bytes = tensor.shape.elements() * DTypeSize(tensor.dtype);
    memory.push_back(std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes) + 1));
    KEEL_RETURN_IF_ERROR(role.model.Add(tensor, Box::Whole(tensor.shape),
                                        {memory.back().get(), ContiguousStrides(tensor.shape)}));
  }
  for (const auto& [dtype, count] : widened) {
    log.Info(
        "{}: {} tensors of {} become F32, the type of a run that goes on from them "
        "(actor_rollout_ref.model.dtype: float32)",
        directory.where(), count, DTypeName(dtype));
  }
  HfReadOptions read;
  read.finite = true;
  read.threads = options.threads;
  KEEL_RETURN_IF_ERROR(directory.ReadInto(role.model, read));

  request.step = options.step;
  request.contents = {true, false, false, false};
  request.config_digest = options.config_digest;
  request.layout = {{"imported_from", hf.Describe(".")}};
  request.roles.push_back(std::move(role));

  LocalCoordinatorHub hub(1);
  CheckpointOptions checkpoint;
  checkpoint.run_id = kImportedRunId;
  Checkpointer checkpointer(run, hub.rank(0), clock, log, checkpoint);
  KEEL_RETURN_IF_ERROR(checkpointer.Open());
  Result<SaveRecord> saved = checkpointer.Save(request);
  KEEL_RETURN_IF_ERROR(checkpointer.Close());
  return saved;
}

}  // namespace keel::checkpoint
