// Offsets of tokens as `tokenizers` counts them, in bytes of the text as it was given.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/byte_range.h"

namespace keel::model {

// Appends to `repaired` the text with U+FFFD for what is not UTF-8. Returns where each byte of it
// stands in `text`, and where the text ends.
std::vector<int64_t> RepairUtf8(std::string_view text, std::string* repaired);

// Spaces with which a token begins and ends, as the vocabulary spells it; one of spaces alone has
// all of them at both ends.
struct TokenSpaces {
  int leading = 0;
  int trailing = 0;
};
TokenSpaces SpacesOfToken(std::string_view token);

// Each space takes one character of the range, whatever that is; those at the end take none where
// the text has not so many characters before it. `text` is UTF-8.
ByteRange WithoutSpaces(std::string_view text, ByteRange range, const TokenSpaces& spaces);

}  // namespace keel::model
