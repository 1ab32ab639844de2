// HfWeights: the whole Hugging Face model inside a checkpoint, in the place of its sharded weights.
#pragma once

#include <span>
#include <string>

#include "checkpoint/format/index.h"
#include "checkpoint/read/step_reader.h"
#include "common/status.h"

namespace keel::checkpoint {

// The config.json that names a role's tensors in files: its own, or the actor's, whose model a
// critic and a reference are. Empty where the checkpoint has neither.
Result<std::string> ConfigTextOf(const StepReader& reader, const std::string& role);

// The reader's index, but with the weights of these roles ("<role>/model") where the safetensors
// files of "<role>/huggingface" have them. Reads and verifies the files' headers. kDataLoss when
// one is damaged, kInvalidData when its content is not what the format says.
Result<Index> IndexOfHfWeights(const StepReader& reader, std::span<const std::string> roles);

}  // namespace keel::checkpoint
