// Where a run's model comes from: a Hugging Face directory, or the configuration's own keys.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpointer.h"
#include "common/json.h"
#include "common/shard_table.h"
#include "common/status.h"
#include "model/hf_config.h"
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

// A digest by which directories with other weights are told apart without reading all of them: of
// each file its size, its beginning, which says what is where, and pages all over it. Two models of
// which one was trained on from the other differ in nearly every page.
Result<std::string> WeightsFingerprint(const std::string& directory);

// Fills the views of `table` from the weights of a directory, converting to the table's dtype. A
// tied lm_head may be absent; so may tensors that match a pattern (fnmatch) of `allow_missing`,
// which then keep their values.
Status ImportWeights(const std::string& directory, const ShardTable& table,
                     const std::vector<std::string>& allow_missing = {});

}  // namespace keel::trainer
