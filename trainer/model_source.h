// Where a run's model comes from: a Hugging Face directory, or the configuration's own keys.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpointer.h"
#include "common/json.h"
#include "common/shard_table.h"
#include "common/status.h"
#include "model/hf_config.h"
#include "model/hf_tensors.h"
#include "model/tokenizer.h"

namespace keel::trainer {

struct ModelSource {
  model::HfConfig config;
  Json json;              // the config.json as given
  std::string directory;  // with weights; empty: random weights
  // config.json and, from a directory, the tokenizer's files: what actor/huggingface/ of a
  // checkpoint holds.
  std::vector<checkpoint::Document> documents;
};

// `path` names a directory, or is empty: then `keys` are config.json's, and what they do not say of
// the vocabulary and of the ids that begin and end a text comes from the tokenizer, which may be
// null otherwise. Errors name file and key.
Result<ModelSource> ResolveModel(const std::string& path, const Json& keys, DType dtype,
                                 const model::Tokenizer* tokenizer);

// Fills the views of `table`, a part of a model of this configuration and head, from the weights of
// a directory, converting to the table's dtype. They must be the whole model's and no other's
// (checkpoint/hf_check.h), and finite; what the directory may lack of them keeps its values.
Status ImportWeights(const std::string& directory, const model::HfConfig& config, model::Head head,
                     const ShardTable& table);

}  // namespace keel::trainer
