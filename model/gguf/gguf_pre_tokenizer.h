// How a vocabulary's text is split before its merges, by the name that `tokenizer.ggml.pre` has.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/json.h"

namespace keel::model {

// Parts of tokenizer.json.
struct GgufPreTokenizer {
  Json normalizer;     // null: none
  Json pre_tokenizer;  // with the bytes' spelling
  bool ignore_merges = false;
  bool adds_bos = false;  // where the file says nothing
};

// Nothing for a name that Keel does not know.
std::optional<GgufPreTokenizer> GgufPreTokenizerOf(std::string_view name);
// "command-r, deepseek-coder, ...": all names.
std::string GgufPreTokenizerNames();

}  // namespace keel::model
