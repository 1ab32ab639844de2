// Where a run's model comes from: a Hugging Face directory, or the configuration's own keys.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "common/tensors/dtype.h"
#include "trainer/data/rows/text_rules.h"
#include "trainer/inputs/model_description.h"
#include "trainer/inputs/tokenizer_fit.h"

namespace keel::trainer {

struct ModelSource : ModelDescription {
  Json json;                          // the config.json as given, or of its text part
  std::vector<std::string> left_out;  // what to say of weights that are not read; also warnings
  std::vector<int64_t> stop_ids;      // that end a text, by config and generation settings
  std::unique_ptr<model::Tokenizer> tokenizer;  // null: rows bring ids
  TextRules text;                               // of rows, with this tokenizer
};

// The tokens that end what the model writes: stop_ids, or else the tokenizer's end of a text.
std::vector<int32_t> StopTokens(const ModelSource& model);

struct ModelOptions {
  TokenizerChoice tokenizer;
  std::string path_key = "actor_rollout_ref.model.path";  // where the path was given, for messages
};

// Whether a file of this name, from a directory with a model, is one that its tokenizer or its
// templates are made of.
bool MakesText(std::string_view name);

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

}  // namespace keel::trainer
