// *.tiktoken: byte strings in base64 with their ranks, a line each. The file has neither the
// pattern that splits texts nor the special tokens: both follow from the class that
// tokenizer_config.json names, where Keel knows it.
#pragma once

#include <string>
#include <string_view>

#include "common/json.h"
#include "common/status.h"
#include "model/tokenizer/files/tokenizer_json.h"

namespace keel::model {

// `settings` is tokenizer_config.json, or an empty map. kInvalidData, with `where` first, names the
// line; and for a class that is not known, with those that are.
Result<TokenizerDocument> ReadTiktoken(std::string_view text, const Json& settings,
                                       std::string_view where);

}  // namespace keel::model
