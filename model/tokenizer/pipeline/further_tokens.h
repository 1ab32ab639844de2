// FurtherTokens: the tokens that stand beside a tokenizer's file, in added_tokens.json, where
// transformers kept them before tokenizer_config.json had added_tokens_decoder.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "model/tokenizer/pipeline/added_tokens.h"
#include "model/tokenizer/pipeline/vocabulary.h"

namespace keel::model {

struct FurtherTokens {
  std::string where;               // their file
  std::vector<AddedToken> tokens;  // by id
};

// Of a file's {"<x>": 32000, ...}. Those among `special` are left out when ids are decoded, and are
// looked for in the text as it was given; the others in the normalized one.
Result<FurtherTokens> ReadAddedTokensFile(const Json& file, const std::vector<std::string>& special,
                                          std::string where);

// Adds those that the tokenizer's own file, `where`, does not have among its added tokens, as
// transformers does, which gives each the vocabulary's id, or else the next one. kInvalidData where
// the file has another: transformers would leave that unsaid.
Status AddFurther(const FurtherTokens& further, const Vocabulary& vocabulary,
                  std::string_view where, std::vector<AddedToken>* added);

}  // namespace keel::model
