// tokenizer.model: SentencePiece's file, a protocol buffer. Of its kinds the one that merges pairs
// (BPE) is read, which Llama 2, Mistral and Gemma have.
#pragma once

#include <string_view>

#include "common/json.h"
#include "common/status.h"
#include "model/tokenizer/files/tokenizer_json.h"

namespace keel::model {

// `settings` is tokenizer_config.json, or an empty map: add_bos_token (true without it) and
// add_eos_token (false). kInvalidData, with `where` first, for a damaged file, and for what is not
// understood, by name: another kind (Unigram), a table of replacements, white space that is
// removed.
Result<TokenizerDocument> ReadSentencePiece(std::string_view bytes, const Json& settings,
                                            std::string_view where);

}  // namespace keel::model
