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
inline CodePoint CodePointAt(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<unsigned char>(text[at + i]));
  };
  const auto tail = [&](size_t i) { return byte(i) & 0x3Fu; };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1Fu) << 6 | tail(1), 2};
  if (lead < 0xF0) return {(lead & 0x0Fu) << 12 | tail(1) << 6 | tail(2), 3};
  return {(lead & 0x07u) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3), 4};
}

void AppendUtf8(uint32_t code_point, std::string* text);

// Bytes at the end that are the beginning of a character and may still become a whole one.
size_t UnfinishedTail(std::string_view text);

// Appends `bytes` with U+FFFD for each maximal part of a character that is not well formed, as
// Rust's from_utf8_lossy does (Unicode 15, section 3.9, "substitution of maximal subparts").
void AppendLossy(std::string_view bytes, std::string* text);

}  // namespace keel::model
