// UTF-8 as tokenizers read it: characters of a text that is known to be well formed, and texts of
// unknown origin made well formed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace keel::model {

// Bytes of the character that begins with `lead`, in well-formed text.
inline size_t Utf8Length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  if (byte < 0x80) return 1;
  if (byte < 0xE0) return 2;
  return byte < 0xF0 ? 3 : 4;
}

struct CodePoint {
  uint32_t value = 0;
  size_t length = 0;  // bytes
};

// The character at `at` < text.size(), in well-formed text.
CodePoint CodePointAt(std::string_view text, size_t at);

void AppendUtf8(uint32_t code_point, std::string* text);

// Bytes at the end that are the beginning of a character and may still become a whole one.
size_t UnfinishedTail(std::string_view text);

// Appends `bytes` with U+FFFD for each maximal part of a character that is not well formed, as
// Rust's from_utf8_lossy does (Unicode 15, section 3.9, "substitution of maximal subparts").
void AppendLossy(std::string_view bytes, std::string* text);

}  // namespace keel::model
