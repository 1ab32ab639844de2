// The model of a run, and whether it fits what the run is to do with it. Torch-free, not
// collective.
#pragma once

#include "common/status.h"
#include "trainer/config/config.h"
#include "trainer/inputs/model_source.h"

namespace keel::trainer {

// Model and tokenizer, and whether they fit each other, the layout and the rewards.
Result<ModelSource> OpenRunModel(const Config& config);

}  // namespace keel::trainer
