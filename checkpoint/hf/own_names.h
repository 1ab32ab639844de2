// What a model calls the tensors that a directory has under other names, which transformers reads,
// too: a base model saved alone has no `model.` before its names, and of two tied weights a file
// may have either.
#pragma once

#include <map>
#include <string>

#include "common/tensors/model_tensors.h"
#include "common/tensors/shard_table.h"

namespace keel::checkpoint {

// The name in the files, and the model's. One whose own name is there, too, is not among them.
std::map<std::string, std::string> OwnNames(const ShardTable& files, const ModelTensors& model);

}  // namespace keel::checkpoint
