#include "common/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <utility>

namespace keel {

namespace {

winsize SizeOf(int fd) {
  winsize size{};
  if (isatty(fd) != 1 || ioctl(fd, TIOCGWINSZ, &size) != 0) return {};
  return size;
}

// Bytes of the character at the start of `text`, and its code point. What is no UTF-8 is a byte.
std::pair<size_t, uint32_t> FirstGlyph(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const size_t length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (length == 1 || first < 0xc0 || text.size() < length) return {1, first};
  uint32_t code = first & (0xffU >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {1, first};
    code = (code << 6) | (byte(i) & 0x3fU);
  }
  return {length, code};
}

// Unicode's blocks of combining marks, and those that terminals draw two columns wide
// (East_Asian_Width W and F): by blocks, not by character.
int WidthOf(uint32_t code) {
  constexpr std::array<std::pair<uint32_t, uint32_t>, 7> kNone = {{{0x300, 0x36f},
                                                                   {0x483, 0x489},
                                                                   {0x1ab0, 0x1aff},
                                                                   {0x200b, 0x200f},
                                                                   {0x20d0, 0x20ff},
                                                                   {0xfe00, 0xfe0f},
                                                                   {0xfe20, 0xfe2f}}};
  constexpr std::array<std::pair<uint32_t, uint32_t>, 9> kTwo = {{{0x1100, 0x115f},
                                                                  {0x2e80, 0x303e},
                                                                  {0x3041, 0xa4cf},
                                                                  {0xac00, 0xd7a3},
                                                                  {0xf900, 0xfaff},
                                                                  {0xfe30, 0xfe6f},
                                                                  {0xff00, 0xff60},
                                                                  {0x1f300, 0x1faff},
                                                                  {0x20000, 0x3fffd}}};
  for (const auto& [low, high] : kNone)
    if (code >= low && code <= high) return 0;
  for (const auto& [low, high] : kTwo)
    if (code >= low && code <= high) return 2;
  return 1;
}

}  // namespace

int TerminalColumns(int fd) { return SizeOf(fd).ws_col; }
int TerminalRows(int fd) { return SizeOf(fd).ws_row; }

int DisplayWidth(std::string_view text) {
  int width = 0;
  while (!text.empty()) {
    const auto [bytes, code] = FirstGlyph(text);
    width += WidthOf(code);
    text.remove_prefix(bytes);
  }
  return width;
}

std::string FitColumns(std::string_view text, int columns) {
  if (columns <= 0) return {};
  if (DisplayWidth(text) <= columns) return std::string(text);
  int width = 0;
  size_t end = 0;
  while (end < text.size()) {
    const auto [bytes, code] = FirstGlyph(text.substr(end));
    if (width + WidthOf(code) > columns - 1) break;
    width += WidthOf(code);
    end += bytes;
  }
  return std::string(text.substr(0, end)) + "…";
}

std::string FitFields(std::span<const std::string> fields, int columns) {
  std::string line;
  int width = 0;
  for (const std::string& field : fields) {
    if (field.empty()) continue;
    if (line.empty()) {
      line = columns > 0 ? FitColumns(field, columns) : field;
      width = DisplayWidth(line);
      continue;
    }
    const int more = 2 + DisplayWidth(field);
    if (columns > 0 && width + more > columns) break;
    line += "  " + field;
    width += more;
  }
  return line;
}

void WriteStderr(std::string_view text) {
  // What cannot be said cannot be said anywhere else either.
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), stderr));
}

}  // namespace keel
