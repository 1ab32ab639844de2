// HfImport: a Hugging Face model becomes the first checkpoint of a run directory.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/base/requests.h"
#include "common/clock.h"
#include "common/files/file_system.h"
#include "common/log.h"
#include "common/status.h"
#include "common/tensors/model_tensors.h"

namespace keel::checkpoint {

struct HfImportOptions {
  std::string role = "actor";
  int64_t step = 0;
  std::string config_digest;  // as the trainer would give it; "" leaves it unchecked at load
  // In the place of the directory's config.json, where `model` is the text part of a model of texts
  // and images. What is said there of images (processors' files) is then left out.
  std::string config_json;
  int threads = 2;  // that read
};

// Reads the weights of `hf` (a Hugging Face model directory, its root) into memory, whole, and
// commits them with config.json and the tokenizer's files as global_step_<step> of `run`: the
// tensors of `model`, in the dtypes that they have there, and no others. kAlreadyExists when that
// step is there; kInvalidData when the directory's weights are not `model`'s (CheckTensors), or not
// finite.
Result<SaveRecord> ImportHuggingFace(const FileSystem& hf, const ModelTensors& model,
                                     FileSystem& run, const Clock& clock, Logger& log,
                                     const HfImportOptions& options);

}  // namespace keel::checkpoint
