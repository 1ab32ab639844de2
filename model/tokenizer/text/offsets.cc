#include "model/tokenizer/text/offsets.h"

#include <algorithm>

#include "common/text.h"
#include "model/tokenizer/text/unicode.h"
#include "model/tokenizer/text/utf8.h"

namespace keel::model {

std::vector<int64_t> RepairUtf8(std::string_view text, std::string* repaired) {
  std::vector<int64_t> places;
  size_t at = 0;
  while (at < text.size()) {
    const size_t bad = std::min(FindNotUtf8(text.substr(at)), text.size() - at);
    for (size_t i = 0; i < bad; ++i) places.push_back(static_cast<int64_t>(at + i));
    *repaired += text.substr(at, bad);
    at += bad;
    if (at == text.size()) break;
    size_t end = at + 1;  // of what becomes one U+FFFD
    std::string one;
    for (size_t length = 2; length <= 3 && at + length <= text.size(); ++length) {
      one.clear();
      AppendLossy(text.substr(at, length), &one);
      if (one.size() == 3) end = at + length;
    }
    *repaired += "\xEF\xBF\xBD";
    places.insert(places.end(), 3, static_cast<int64_t>(at));
    at = end;
  }
  places.push_back(static_cast<int64_t>(text.size()));
  return places;
}

TokenSpaces SpacesOfToken(std::string_view token) {
  constexpr uint32_t kSpelledSpace = 0x120;  // of the byte alphabet
  TokenSpaces spaces;
  bool only_spaces = true;
  for (size_t at = 0; at < token.size();) {
    const CodePoint c = CodePointAt(token, at);
    at += c.length;
    if (c.value == kSpelledSpace || IsUnicodeSpace(c.value)) {
      if (only_spaces) ++spaces.leading;
      ++spaces.trailing;
    } else {
      only_spaces = false;
      spaces.trailing = 0;
    }
  }
  return spaces;
}

ByteRange WithoutSpaces(std::string_view text, ByteRange range, const TokenSpaces& spaces) {
  for (int taken = 0; taken < spaces.leading && range.begin < range.end; ++taken)
    range.begin += static_cast<int64_t>(Utf8Length(text[static_cast<size_t>(range.begin)]));
  const auto back = [&](int64_t at) {
    do --at;
    while ((static_cast<unsigned char>(text[static_cast<size_t>(at)]) & 0xC0u) == 0x80u);
    return at;
  };
  int64_t end = range.end;
  for (int taken = 0; taken < spaces.trailing; ++taken) {
    if (end == 0) return range;
    end = back(end);
  }
  range.end = std::max(end, range.begin);
  return range;
}

}  // namespace keel::model
