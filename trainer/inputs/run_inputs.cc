#include "trainer/inputs/run_inputs.h"

#include "checkpoint/hf/hf_check.h"
#include "checkpoint/hf/hf_model_dir.h"
#include "common/files/file_system.h"
#include "model/config/hf_tensors.h"
#include "trainer/inputs/lm_inputs.h"
#include "trainer/inputs/rl_inputs.h"
#include "trainer/inputs/run_model.h"
#include "trainer/inputs/run_paths.h"

namespace keel::trainer {

namespace {

template <typename Set>
Status Report(const Config& config, const Result<RunData<Set>>& data, InputReport* report) {
  KEEL_RETURN_IF_ERROR(data.status());
  report->train_samples = data->train.size();
  report->val_samples = data->val.size();
  report->skipped_rows = data->train.skipped_rows();
  for (std::string& warning : data->Warnings()) report->warnings.push_back(std::move(warning));
  if (std::string warning = BatchWarning(config, data->train.size()); !warning.empty())
    report->warnings.push_back(std::move(warning));
  return Status::Ok();
}

// That the weights can be opened, and their headers are whole.
// Names and shapes; the values are read where they are needed.
Status CheckWeights(const std::string& directory, const model::HfConfig& config, model::Head head) {
  KEEL_ASSIGN_OR_RETURN(const auto fs, OpenPosixFileSystem(directory, false, LinkPolicy::kFollow));
  return checkpoint::OpenTensors(*fs, ".", model::TensorsOf(config, head)).status();
}

}  // namespace

Result<InputReport> CheckRunInputs(const Config& config) {
  KEEL_RETURN_IF_ERROR(CheckRunPaths(config));
  KEEL_ASSIGN_OR_RETURN(const ModelSource model, OpenRunModel(config));
  InputReport report;
  report.parameters = model.config.NumParameters();
  report.warnings = model.warnings;
  if (!model.directory.empty()) {
    KEEL_RETURN_IF_ERROR(CheckWeights(model.directory, model.config, model::Head::kVocabulary));
  }
  if (config.trainer.task == TaskKind::kRl && config.critic.model.path) {
    KEEL_RETURN_IF_ERROR(CheckWeights(*config.critic.model.path, model.config, model::Head::kValue)
                             .WithContext("critic.model.path"));
  }
  if (config.trainer.task == TaskKind::kRl) {
    KEEL_RETURN_IF_ERROR(Report(config, LoadPromptData(config, model), &report));
  } else if (config.trainer.task == TaskKind::kDpo) {
    KEEL_RETURN_IF_ERROR(Report(config, LoadPreferenceData(config, model), &report));
  } else {
    KEEL_RETURN_IF_ERROR(Report(config, LoadLmData(config, model), &report));
  }
  return report;
}

}  // namespace keel::trainer
