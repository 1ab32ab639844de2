// Properties of characters, by libutf8proc (Unicode 14), as tokenizers' components name them.
#pragma once

#include <cstdint>
#include <string>

namespace keel::model {

bool IsUnicodeSpace(uint32_t code_point);        // White_Space
bool IsUnicodeNumber(uint32_t code_point);       // Nd, Nl, No
bool IsUnicodePunctuation(uint32_t code_point);  // P* of Unicode 8, and all ASCII signs
// \w of Unicode's recommendation for regular expressions (UTS 18): Alphabetic, marks, decimal
// digits, connectors, joiners.
bool IsUnicodeWord(uint32_t code_point);

// Appends the full lower-case mapping: one character, or two for U+0130.
void AppendLowercase(uint32_t code_point, std::string* text);

}  // namespace keel::model
