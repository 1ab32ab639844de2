// White space as Python's str.isspace has it: of characters, and at the ends of a text.
#pragma once

#include <cstddef>
#include <string_view>

namespace keel {

constexpr bool IsPythonSpace(char32_t c) {
  return (c >= 0x9 && c <= 0xd) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
         c == 0x205f || c == 0x3000;
}

// The bytes of the one character of white space that `text` begins or ends with; 0 where it does
// not. Any bytes: what is not UTF-8 is no white space.
size_t PythonSpaceAtBegin(std::string_view text);
size_t PythonSpaceAtEnd(std::string_view text);

}  // namespace keel
