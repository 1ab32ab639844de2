// ContextLength: how long a text of a model may be. The one place that knows:
// max_position_embeddings is the answer where positions are not stretched, and what it counts where
// they are differs from one way of stretching to the next. Torch-free.
#pragma once

#include <cstdint>
#include <string>

#include "model/config/hf_config.h"

namespace keel::model {

struct ContextLength {
  int64_t tokens = 0;
  std::string reason;  // where the number is from, for messages: "the model's ... is 4096"
};

// Of a text that is trained on. As vLLM derives it (_get_and_verify_max_len of
// vllm/config/model.py):
//   linear, dynamic: max_position_embeddings is the context before it is stretched, and is
//     multiplied by the factor; a family that counts the stretched one says so in its table.
//   yarn: the factor times original_max_position_embeddings.
//   default, llama3, longrope: max_position_embeddings.
// Other than vLLM's it is never less than max_position_embeddings, which is the file's own promise.
ContextLength LongestTrained(const HfConfig& config);

// Of a text that is generated, or scored by what generates: prompt and response. As above, but for
// kDynamic, which ends with the original context: every further token would turn all before it
// another way.
ContextLength LongestGenerated(const HfConfig& config);

}  // namespace keel::model
