// OpenTokenizer: the tokenizer of a model's directory, whichever of the known files it is in.
#pragma once

#include <memory>
#include <string>

#include "common/status.h"
#include "model/tokenizer/tokenizer.h"

namespace keel::model {

// Reads tokenizer.json, or, where there is none, tekken.json, tokenizer.model or *.tiktoken, the
// first that there is, with the names of the tokens that begin, end and pad a text from
// tokenizer_config.json or special_tokens_map.json, and where the former has no
// added_tokens_decoder with the tokens of added_tokens.json. kNotFound when the directory has no
// tokenizer; kInvalidData for one of another kind, with what was found and what is read, and for
// files that contradict each other.
Result<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& directory);

}  // namespace keel::model
