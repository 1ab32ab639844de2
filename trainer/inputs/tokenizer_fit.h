// Which tokenizer a model's rows are read by: whether the ids that a tokenizer gives are those that
// the model was, or will be, trained on. Torch-free.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "model/tokenizer/tokenizer_kind.h"

namespace keel::trainer {

// The key of a config.json that says by which of our tokenizers the model was trained.
inline constexpr const char* kTokenizerMark = "keel_tokenizer";

// Text files of a Hugging Face directory beside weights and config.json, by name.
using ModelFiles = std::map<std::string, std::string>;

// Files that make a tokenizer, in the order in which they are named in messages.
std::vector<std::string> TokenizerFileNames();

struct TokenizerFit {
  model::TokenizerKind kind = model::TokenizerKind::kIds;
  std::string ids_only;  // of kIds: why, to go on with "a row of text, but "
  std::string no_chat;   // why messages are not rendered as ChatML; "" when they are
};

// `config` is config.json, or the configuration's own keys where `directory` is empty; `files` are
// the directory's. Without `wanted` the tokenizer is the model's: bytes for a model that the
// configuration describes, or that an export of Keel marks as one of bytes; none for any other.
// kConfig says what of vocabulary, special ids (config.json, generation_config.json) or tokenizer
// files does not fit what is wanted.
Result<TokenizerFit> FitTokenizer(std::optional<model::TokenizerKind> wanted, const Json& config,
                                  const std::string& directory, const ModelFiles& files);

// The ids that end a text: those of config.json, then those of generation_config.json that are not
// among them. kConfig when a special id of either is outside the vocabulary.
Result<std::vector<int64_t>> StopTokenIds(const Json& config, int64_t vocab_size,
                                          const std::string& directory, const ModelFiles& files);

}  // namespace keel::trainer
