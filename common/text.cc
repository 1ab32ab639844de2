#include "common/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace keel {

int EditDistance(std::string_view a, std::string_view b) {
  const size_t columns = b.size() + 1;
  std::vector<int> table((a.size() + 1) * columns);
  const auto at = [&](size_t i, size_t j) -> int& { return table[i * columns + j]; };
  for (size_t i = 0; i <= a.size(); ++i) at(i, 0) = static_cast<int>(i);
  for (size_t j = 0; j <= b.size(); ++j) at(0, j) = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      int best = std::min(at(i - 1, j), at(i, j - 1)) + 1;
      best = std::min(best, at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1));
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        best = std::min(best, at(i - 2, j - 2) + 1);
      at(i, j) = best;
    }
  }
  return at(a.size(), b.size());
}

std::string Closest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  int least = word.size() <= 4 ? 2 : 3;
  for (const std::string& candidate : candidates) {
    // No fewer edits than the lengths differ; so a word of megabytes costs nothing.
    if (std::max(word.size(), candidate.size()) - std::min(word.size(), candidate.size()) >=
        static_cast<size_t>(least)) {
      continue;
    }
    const int distance = EditDistance(word, candidate);
    if (distance < least) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

namespace {

// Bytes of the well-formed, printable UTF-8 character that `text` starts with; 0 when it does not.
size_t PrintableLength(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  uint32_t code = first & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3fu);
  }
  // Longer than need be, a surrogate, past the end of Unicode, or a control character of C1.
  if ((length == 3 && code < 0x800) || (length == 4 && code < 0x10000)) return 0;
  if ((code >= 0xd800 && code < 0xe000) || code > 0x10ffff || code < 0xa0) return 0;
  // Line separators, and what makes the text after it run from right to left.
  if ((code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069)) return 0;
  return length;
}

}  // namespace

std::string Printable(std::string_view text, size_t max_bytes) {
  std::string out;
  size_t read = 0;
  while (read < text.size()) {
    const size_t length = PrintableLength(text.substr(read));
    if (read + std::max<size_t>(length, 1) > max_bytes) return out + "...";
    if (length > 0) {
      out.append(text.substr(read, length));
      read += length;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<uint8_t>(text[read]));
      ++read;
    }
  }
  return out;
}

}  // namespace keel
