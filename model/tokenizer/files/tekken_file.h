// tekken.json, in which Mistral's models keep a byte-pair vocabulary: its pattern, its tokens by
// rank, and the special tokens that stand before them (mistral-common's Tekkenizer).
#pragma once

#include <string_view>

#include "common/status.h"
#include "model/tokenizer/files/tokenizer_json.h"

namespace keel::model {

// kInvalidData, with `where` first, names the key. Every text begins with <s>, as transformers has
// it.
Result<TokenizerDocument> ReadTekken(std::string_view text, std::string_view where);

}  // namespace keel::model
