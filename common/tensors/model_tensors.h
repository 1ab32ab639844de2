// ModelTensors: which tensors the weights of a whole model are, whatever holds them. Made from a
// model's configuration (model/config/hf_tensors.h), compared with what a directory has
// (checkpoint/hf/hf_check.h).
#pragma once

#include <string>
#include <vector>

#include "common/tensors/shard_table.h"

namespace keel {

struct ModelTensors {
  // All of them. What holds one has this shape, and a dtype that can be converted to this.
  std::vector<TensorInfo> needed;
  std::vector<std::string> may_lack;  // names among `needed`
  std::vector<std::string> may_add;   // patterns (fnmatch) of others that say nothing of the model
  // May be there when it holds the very values of `original`, which is needed.
  struct Copy {
    std::string name;
    std::string original;
  };
  std::vector<Copy> may_copy;
  // One tensor that may be there in place of `parts`, needed ones, which are then its values from
  // the first to the last.
  struct Stack {
    std::string name;
    Dims shape;
    std::vector<std::string> parts;
  };
  std::vector<Stack> may_stack;
};

}  // namespace keel
