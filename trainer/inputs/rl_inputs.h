// The data of DPO and RL. Torch-free, not collective.
#pragma once

#include <cstdint>

#include "common/status.h"
#include "trainer/config/config.h"
#include "trainer/data/preference_data.h"
#include "trainer/data/prompt_data.h"
#include "trainer/inputs/model_source.h"
#include "trainer/inputs/run_data.h"

namespace keel::trainer {

// How rows of prompts are read, whoever reads them: their columns, and what their rewards need of
// them. `config` must outlive it.
rl::PromptOptions PromptOptionsOf(const Config& config, int64_t vocab_size);

// kInvalidData with file and line; kConfig naming the keys when the model has too few positions, or
// no verifier can be made of the rewards' section.
Result<RunData<rl::PreferenceSet>> LoadPreferenceData(const Config& config,
                                                      const ModelSource& model);
Result<RunData<rl::PromptSet>> LoadPromptData(const Config& config, const ModelSource& model);

}  // namespace keel::trainer
