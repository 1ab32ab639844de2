// RunInputs: what a run reads before it connects to anything: its model's shape and tokenizer, and
// its data. `keel config validate` reads the same. Torch-free, and not collective.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "trainer/config.h"
#include "trainer/data/dataset.h"
#include "trainer/model_source.h"
#include "trainer/rl/preference_data.h"
#include "trainer/rl/prompt_data.h"

namespace keel::trainer {

// Of the run's folder: the configuration as it was resolved.
inline constexpr std::string_view kConfigName = "config.yaml";

// A folder that is none, or no run's, a pipe or a directory in the place of one of its files, or a
// checkpoint by name that is not there.
Status CheckRunPaths(const Config& config);

// Model and tokenizer, and whether they fit each other, the layout and the rewards.
Result<ModelSource> OpenRunModel(const Config& config);

// Training and validation data of a task. `Set`: Dataset, PreferenceSet or PromptSet.
template <typename Set>
struct RunData {
  Set train;
  Set val;
  // What of the files was not read.
  std::vector<std::string> Warnings() const {
    std::vector<std::string> all = train.warnings();
    all.insert(all.end(), val.warnings().begin(), val.warnings().end());
    return all;
  }
};

// kInvalidData with file and line; kConfig naming the keys when the model has too few positions.
Result<RunData<Dataset>> LoadLmData(const Config& config, const ModelSource& model);
Result<RunData<rl::PreferenceSet>> LoadPreferenceData(const Config& config,
                                                      const ModelSource& model);
Result<RunData<rl::PromptSet>> LoadPromptData(const Config& config, const ModelSource& model);

// All of the above for the configuration's task, the headers of weights too.
struct InputReport {
  int64_t train_samples = 0;
  int64_t val_samples = 0;
  int64_t skipped_rows = 0;
  int64_t parameters = 0;
  std::vector<std::string> warnings;
};
Result<InputReport> CheckRunInputs(const Config& config);

}  // namespace keel::trainer
