// Where a run's model comes from: a Hugging Face directory, or the configuration's own keys.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpointer.h"
#include "common/json.h"
#include "common/shard_table.h"
#include "common/status.h"
#include "model/hf_config.h"
#include "model/hf_tensors.h"
#include "trainer/data/text_rules.h"
#include "trainer/inputs/tokenizer_fit.h"

namespace keel::trainer {

struct ModelSource {
  model::HfConfig config;
  Json json;              // the config.json as given
  std::string directory;  // with weights; empty: random weights
  // config.json and, from a directory, the tokenizer's files: what actor/huggingface/ of a
  // checkpoint holds.
  std::vector<checkpoint::Document> documents;
  std::vector<int64_t> stop_ids;  // that end a text, by config and generation settings
  std::unique_ptr<model::Tokenizer> tokenizer;  // null: rows bring ids
  TextRules text;                               // of rows, with this tokenizer
  std::vector<std::string> warnings;
};

struct ModelOptions {
  TokenizerChoice tokenizer;
  std::string path_key = "actor_rollout_ref.model.path";  // where the path was given, for messages
};

// `path` names a directory, or is empty: then `keys` are config.json's, and what they do not say of
// the vocabulary and of the ids that begin and end a text comes from the tokenizer. Errors name
// file and key.
Result<ModelSource> ResolveModel(const std::string& path, const Json& keys, DType dtype,
                                 const ModelOptions& options = {});

// The tokenizer of a directory, with a config.json or without, as runs of its model read rows, and
// the ids of their vocabulary: the model's, or the tokenizer's.
struct DirectoryTokenizer {
  TokenizerFit fit;
  int64_t vocab_size = 0;
};
Result<DirectoryTokenizer> OpenDirectoryTokenizer(const std::string& directory,
                                                  const ModelOptions& options);

// A digest by which directories with other weights are told apart without reading all of them: of
// each file its size, its beginning, which says what is where, and pages all over it. Two models of
// which one was trained on from the other differ in nearly every page.
Result<std::string> WeightsFingerprint(const std::string& directory);

// Fills the views of `table`, a part of a model of this configuration and head, from the weights of
// a directory, converting to the table's dtype. They must be the whole model's and no other's
// (checkpoint/hf/hf_check.h), and finite; what the directory may lack of them keeps its values.
Status ImportWeights(const std::string& directory, const model::HfConfig& config, model::Head head,
                     const ShardTable& table);

}  // namespace keel::trainer
