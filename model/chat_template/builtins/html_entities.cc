#include "model/chat_template/builtins/html_entities.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <unordered_map>

#include "common/text.h"
#include "model/chat_template/builtins/html_entity_table.h"
#include "model/chat_template/builtins/text_pieces.h"
#include "model/chat_template/unicode/code_points.h"

namespace keel::model::jinja {
namespace {

struct Entity {
  std::string text;
  bool closed = true;  // the name counts with a semicolon alone
};

using Entities = std::unordered_map<std::string_view, Entity>;

Entities ReadTable() {
  Entities entities;
  for (std::string_view entry : SplitAt(HtmlEntityTable(), " ", -1, false)) {
    const size_t end = entry.find_first_of("=!");
    Entity& entity = entities[entry.substr(0, end)];
    entity.closed = entry[end] == '=';
    for (std::string_view code : SplitAt(entry.substr(end + 1), ",", -1, false)) {
      uint32_t character = 0;
      std::from_chars(code.data(), code.data() + code.size(), character, 16);
      AppendCharacter(character, &entity.text);
    }
  }
  return entities;
}

const Entity* Find(std::string_view name, bool closed) {
  static const Entities kEntities = ReadTable();
  const auto found = kEntities.find(name);
  return found == kEntities.end() || (found->second.closed && !closed) ? nullptr : &found->second;
}

// What the numbers 0x80 to 0x9f mean: the characters that Windows has there. 0: none.
constexpr std::array<char32_t, 32> kWindows = {
    0x20ac, 0x81,   0x201a, 0x192,  0x201e, 0x2026, 0x2020, 0x2021, 0x2c6,  0x2030, 0x160,
    0x2039, 0x152,  0x8d,   0x17d,  0x8f,   0x90,   0x2018, 0x2019, 0x201c, 0x201d, 0x2022,
    0x2013, 0x2014, 0x2dc,  0x2122, 0x161,  0x203a, 0x153,  0x9d,   0x17e,  0x178};

void AppendNumbered(uint32_t code, std::string* out) {
  constexpr char32_t kReplacement = 0xfffd;
  if (code >= 0x80 && code <= 0x9f) return AppendCharacter(kWindows[code - 0x80], out);
  if (code == 0 || (code >= 0xd800 && code <= 0xdfff) || code > 0x10ffff) {
    return AppendCharacter(kReplacement, out);
  }
  const bool control =
      (code < 0x20 && code != '\t' && code != '\n' && code != '\f' && code != '\r') || code == 0x7f;
  const bool none = (code >= 0xfdd0 && code <= 0xfdef) || (code & 0xfffe) == 0xfffe;
  if (!control && !none) AppendCharacter(code, out);
}

int DigitOf(char c) {
  if (IsDigit(c)) return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// "&#65;": appends its character and gives how long it is; 0: it is no such thing.
size_t Numbered(std::string_view text, std::string* out) {
  if (text.size() < 3 || text[1] != '#') return 0;
  const bool hexadecimal = text[2] == 'x' || text[2] == 'X';
  const size_t begin = hexadecimal ? 3 : 2;
  size_t at = begin;
  uint32_t code = 0;
  for (; at < text.size(); ++at) {
    const int digit = DigitOf(text[at]);
    if (digit < 0 || (digit > 9 && !hexadecimal)) break;
    code =
        std::min<uint32_t>(code * (hexadecimal ? 16 : 10) + static_cast<uint32_t>(digit), 0x110000);
  }
  if (at == begin) return 0;
  AppendNumbered(code, out);
  return at < text.size() && text[at] == ';' ? at + 1 : at;
}

// "&amp;": the same.
size_t Named(std::string_view text, std::string* out) {
  size_t end = 1;
  for (int count = 0; count < 32 && end < text.size(); ++count) {
    if (std::string_view("\t\n\f <&#;").find(text[end]) != std::string_view::npos) break;
    NextCharacter(text, &end);
  }
  const std::string_view name = text.substr(1, end - 1);
  if (name.empty()) return 0;
  const bool closed = end < text.size() && text[end] == ';';
  if (const Entity* found = Find(name, closed)) {
    out->append(found->text);
    return closed ? end + 1 : end;
  }
  // The longest name that it begins with, of those that need no semicolon.
  for (size_t length = name.size(); length > 1; --length) {
    const Entity* const found = Find(name.substr(0, length), false);
    if (found == nullptr) continue;
    out->append(found->text);
    return 1 + length;
  }
  return 0;
}

}  // namespace

std::string UnescapedHtml(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    size_t length = 0;
    if (text[at] == '&') {
      length = Numbered(text.substr(at), &out);
      if (length == 0) length = Named(text.substr(at), &out);
    }
    if (length == 0) {
      out.push_back(text[at]);
      length = 1;
    }
    at += length;
  }
  return out;
}

}  // namespace keel::model::jinja
