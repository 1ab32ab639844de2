// Whether the weights of a Hugging Face directory are those of a model: the one check for all who
// read them.
#pragma once

#include <string_view>

#include "checkpoint/hf/hf_model_dir.h"
#include "common/status.h"
#include "common/tensors/model_tensors.h"

namespace keel::checkpoint {

// kInvalidData names, each kind with its number, the tensors that are missing, that have another
// shape or a dtype that cannot be converted, and those that the model has no place for: it would be
// another model without them. Allocates nothing of a tensor's size; reads headers, and values of
// what may be there as a copy alone. Whether values are finite is seen when they are read
// (HfReadOptions::finite).
Status CheckTensors(const HfModelDir& directory, const ModelTensors& model);
// The same for tensors that are described elsewhere than in the directory: `described` begins the
// message in its place ("model.gguf: the tensors are not those that ...").
Status CheckTensors(const HfModelDir& directory, const ModelTensors& model,
                    std::string_view described);

// The directory as it is to be read for `model`: opened, in the model's names, its
// stacks as their parts, and checked.
Result<HfModelDir> OpenTensors(const FileSystem& fs, std::string directory,
                               const ModelTensors& model);

}  // namespace keel::checkpoint
