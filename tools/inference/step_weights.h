// Weights from a step of a run, whatever layout saved them.
#pragma once

#include <optional>
#include <string>

#include "common/progress.h"
#include "common/status.h"
#include "common/tensors/dtype.h"
#include "common/tensors/shard_table.h"

namespace keel::tools {

// `path` is a directory with a checkpoint in it.
bool IsCheckpoint(const std::string& path);
// The directory of the model's config.json and tokenizer in a checkpoint. kNotFound, saying why,
// for one without a model.
Result<std::string> ModelFolderOf(const std::string& step);
// The dtype of the weights there.
Result<DType> StepDType(const std::string& step);
// A digest of the step's manifest, which has one of every file: of which step and whose it is.
Result<std::string> StepFingerprint(const std::string& step);
// Fills the views of `table`, which have that dtype, with what they need of the actor's weights,
// verified. Not collective: each rank reads its own. `bar` hears of what is read; may be null.
Status ReadStepWeights(const std::string& step, const ShardTable& table, Progress* bar = nullptr);

}  // namespace keel::tools
