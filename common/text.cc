#include "common/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace keel {

std::string_view Trim(std::string_view text) {
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  return text;
}

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

// The well-formed UTF-8 character that `text` starts with; length 0 when it does not.
struct Character {
  size_t length = 0;
  uint32_t code = 0;
};

Character FirstCharacter(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {1, first};
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return {};
  uint32_t code = first & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fu);
  }
  // Longer than need be, a surrogate, or past the end of Unicode.
  if ((length == 3 && code < 0x800) || (length == 4 && code < 0x10000)) return {};
  if ((code >= 0xd800 && code < 0xe000) || code > 0x10ffff) return {};
  return {length, code};
}

bool IsPrintable(uint32_t code) {
  if (code < 0x20 || (code >= 0x7f && code < 0xa0)) return false;
  // Line separators, and what makes the text after it run from right to left.
  return !(code >= 0x2028 && code <= 0x202e) && !(code >= 0x2066 && code <= 0x2069);
}

}  // namespace

size_t FindNotUtf8(std::string_view text) {
  for (size_t read = 0; read < text.size();) {
    const size_t length = FirstCharacter(text.substr(read)).length;
    if (length == 0) return read;
    read += length;
  }
  return std::string_view::npos;
}

std::string Printable(std::string_view text, size_t max_bytes) {
  std::string out;
  size_t read = 0;
  while (read < text.size()) {
    const auto [length, code] = FirstCharacter(text.substr(read));
    const std::string_view bytes = text.substr(read, std::max<size_t>(length, 1));
    if (read + bytes.size() > max_bytes) return out + "...";
    if (length > 0 && IsPrintable(code)) {
      out.append(bytes);
    } else {
      for (const char byte : bytes) out += fmt::format("\\x{:02x}", static_cast<uint8_t>(byte));
    }
    read += bytes.size();
  }
  return out;
}

std::string PrintableLines(std::string_view message) {
  std::string text;
  for (;;) {
    const size_t end = std::min(message.find('\n'), message.size());
    text += Printable(message.substr(0, end), std::string_view::npos);
    if (end == message.size()) return text;
    message.remove_prefix(end + 1);
    text += "\n    ";
  }
}

std::string EscapedHtml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out.push_back(c);
    }
  }
  return out;
}

}  // namespace keel
