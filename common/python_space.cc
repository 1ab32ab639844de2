#include "common/python_space.h"

#include <algorithm>

namespace keel {
namespace {

bool IsContinuation(char byte) { return (byte & '\xc0') == '\x80'; }

}  // namespace

size_t PythonSpaceAtBegin(std::string_view text) {
  // Python has none beyond the characters of three bytes.
  const auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.empty()) return 0;
  if (at(0) < 0x80) return IsPythonSpace(at(0)) ? 1 : 0;
  if (text.size() < 2 || !IsContinuation(text[1])) return 0;
  if (at(0) >= 0xc0 && at(0) < 0xe0) {
    const char32_t c = (at(0) & 0x1fU) << 6 | (at(1) & 0x3fU);
    return c >= 0x80 && IsPythonSpace(c) ? 2 : 0;
  }
  if (at(0) < 0xe0 || at(0) >= 0xf0 || text.size() < 3 || !IsContinuation(text[2])) return 0;
  const char32_t c = (at(0) & 0xfU) << 12 | (at(1) & 0x3fU) << 6 | (at(2) & 0x3fU);
  return c >= 0x800 && IsPythonSpace(c) ? 3 : 0;
}

size_t PythonSpaceAtEnd(std::string_view text) {
  for (size_t size = 1; size <= std::min<size_t>(3, text.size()); ++size) {
    if (PythonSpaceAtBegin(text.substr(text.size() - size)) == size) return size;
  }
  return 0;
}

}  // namespace keel
