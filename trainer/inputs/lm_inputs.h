// The data of pre-training and SFT. Torch-free, not collective.
#pragma once

#include "common/status.h"
#include "trainer/config/config.h"
#include "trainer/data/dataset.h"
#include "trainer/inputs/model_source.h"
#include "trainer/inputs/run_data.h"

namespace keel::trainer {

// kInvalidData with file and line; kConfig naming the keys when the model has too few positions.
Result<RunData<Dataset>> LoadLmData(const Config& config, const ModelSource& model);

}  // namespace keel::trainer
