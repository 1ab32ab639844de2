// Which tokenizer a model's rows are read by: whether the ids that a tokenizer gives are those that
// the model was, or will be, trained on. Torch-free.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/tokenizer_kind.h"
#include "trainer/data/rows/text_rules.h"
#include "trainer/inputs/chat_fit.h"

namespace keel::trainer {

// The key of a config.json that says by which of our tokenizers the model was trained.
inline constexpr const char* kTokenizerMark = "keel_tokenizer";

// Text files of a Hugging Face directory beside weights and config.json, by name.
using ModelFiles = std::map<std::string, std::string>;

// Files that make a tokenizer, in the order in which they are named in messages.
std::vector<std::string> TokenizerFileNames();

// What the run asks for.
struct TokenizerChoice {
  std::optional<model::TokenizerKind> kind;  // nothing: the model's own
  std::string tokenizer_path;                // a directory with another than the model's; or ""
  ChatChoice chat;
};

struct TokenizerFit {
  std::unique_ptr<model::Tokenizer> tokenizer;  // null: rows bring ids
  bool bytes = false;                           // Keel's own, of bytes
  TextRules text;                               // with this tokenizer
  std::vector<std::string> warnings;
};

// `config` is config.json, or the configuration's own keys where `directory` is empty; `files` are
// those of the directory that the tokenizer is from. Without a wanted kind the tokenizer is the
// model's: what its files say; bytes for a model that the configuration describes, or that an
// export of Keel marks as one of bytes; none for any other, nor where the files cannot be read,
// which rows of text are told. kConfig says what of vocabulary, special ids (config.json,
// generation_config.json) or tokenizer files does not fit what is wanted, or the model.
Result<TokenizerFit> FitTokenizer(const TokenizerChoice& choice, const Json& config,
                                  const std::string& directory, const ModelFiles& files);

// The ids that end a text: those of config.json, of generation_config.json, and the tokenizer's, if
// there is one, each once. kConfig when a special id of either is outside the vocabulary.
Result<std::vector<int64_t>> StopTokenIds(const Json& config, int64_t vocab_size,
                                          const std::string& directory, const ModelFiles& files,
                                          const model::Tokenizer* tokenizer);

}  // namespace keel::trainer
