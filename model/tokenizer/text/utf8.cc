#include "model/tokenizer/text/utf8.h"

#include <algorithm>

#include "common/text.h"

namespace keel::model {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

unsigned char ByteAt(std::string_view text, size_t at) {
  return static_cast<unsigned char>(text[at]);
}

// How many bytes at the start of `bytes` begin a character in a way that well-formed text may; and
// how many bytes that character has in all, 0 when the first byte begins none.
struct Start {
  size_t good = 0;
  size_t length = 0;
};

Start StartOfCharacter(std::string_view bytes) {
  const unsigned char lead = ByteAt(bytes, 0);
  if (lead < 0x80) return {1, 1};
  if (lead < 0xC2 || lead > 0xF4) return {0, 0};
  const size_t length = Utf8Length(bytes[0]);
  // The second byte has a narrower range after four of the leads: no overlong forms, no
  // surrogates, nothing above U+10FFFF.
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  size_t good = 1;
  while (good < length && good < bytes.size()) {
    const unsigned char byte = ByteAt(bytes, good);
    if (byte < low || byte > high) break;
    low = 0x80;
    high = 0xBF;
    ++good;
  }
  return {good, length};
}

}  // namespace

void AppendUtf8(uint32_t code_point, std::string* text) {
  const auto tail = [&](int shift) {
    *text += static_cast<char>(0x80u | (code_point >> shift & 0x3Fu));
  };
  if (code_point < 0x80) {
    *text += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    *text += static_cast<char>(0xC0u | code_point >> 6);
    tail(0);
  } else if (code_point < 0x10000) {
    *text += static_cast<char>(0xE0u | code_point >> 12);
    tail(6);
    tail(0);
  } else {
    *text += static_cast<char>(0xF0u | code_point >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

size_t UnfinishedTail(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const std::string_view tail = text.substr(text.size() - back);
    if ((ByteAt(tail, 0) & 0xC0u) == 0x80u) continue;
    const Start start = StartOfCharacter(tail);
    return start.good == back && start.length > back ? back : 0;
  }
  return 0;
}

void AppendLossy(std::string_view bytes, std::string* text) {
  while (!bytes.empty()) {
    const size_t bad = FindNotUtf8(bytes);
    if (bad == std::string_view::npos) {
      *text += bytes;
      return;
    }
    *text += bytes.substr(0, bad);
    bytes.remove_prefix(bad);
    *text += kReplacement;
    bytes.remove_prefix(std::max<size_t>(1, StartOfCharacter(bytes).good));
  }
}

}  // namespace keel::model
