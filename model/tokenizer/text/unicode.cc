#include "model/tokenizer/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <utility>

#include "model/tokenizer/text/utf8.h"

namespace keel::model {

namespace {

utf8proc_category_t CategoryOf(uint32_t code_point) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
}

bool IsIn(uint32_t code_point, uint32_t low, uint32_t high) {
  return code_point >= low && code_point <= high;
}

// Punctuation that came after Unicode 8, whose tables `tokenizers` knows punctuation by.
constexpr std::array<std::pair<uint32_t, uint32_t>, 31> kPunctuationAfterUnicode8 = {
    {{0x61D, 0x61D},     {0x9FD, 0x9FD},     {0xA76, 0xA76},     {0xC77, 0xC77},
     {0xC84, 0xC84},     {0x1B7D, 0x1B7E},   {0x2E43, 0x2E4F},   {0x2E52, 0x2E5D},
     {0x10EAD, 0x10EAD}, {0x10F55, 0x10F59}, {0x10F86, 0x10F89}, {0x111C9, 0x111C9},
     {0x1144B, 0x1144F}, {0x1145A, 0x1145B}, {0x1145D, 0x1145D}, {0x11660, 0x1166C},
     {0x116B9, 0x116B9}, {0x1183B, 0x1183B}, {0x11944, 0x11946}, {0x119E2, 0x119E2},
     {0x11A3F, 0x11A46}, {0x11A9A, 0x11A9C}, {0x11A9E, 0x11AA2}, {0x11C41, 0x11C45},
     {0x11C70, 0x11C71}, {0x11EF7, 0x11EF8}, {0x11FFF, 0x11FFF}, {0x12FF1, 0x12FF2},
     {0x16E97, 0x16E9A}, {0x16FE2, 0x16FE2}, {0x1E95E, 0x1E95F}}};
// CANADIAN SYLLABICS CHI SIGN has become a symbol since.
constexpr uint32_t kPunctuationOnceOnly = 0x166D;

}  // namespace

bool IsUnicodeSpace(uint32_t c) {
  if (c < 0x80) return c == ' ' || IsIn(c, '\t', '\r');
  return c == 0x85 || c == 0xA0 || c == 0x1680 || IsIn(c, 0x2000, 0x200A) ||
         IsIn(c, 0x2028, 0x2029) || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsUnicodeNumber(uint32_t c) {
  if (c < 0x80) return IsIn(c, '0', '9');
  const utf8proc_category_t category = CategoryOf(c);
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

bool IsUnicodePunctuation(uint32_t c) {
  if (c < 0x80) {
    return IsIn(c, '!', '/') || IsIn(c, ':', '@') || IsIn(c, '[', '`') || IsIn(c, '{', '~');
  }
  const utf8proc_category_t category = CategoryOf(c);
  if (category < UTF8PROC_CATEGORY_PC || category > UTF8PROC_CATEGORY_PO) {
    return c == kPunctuationOnceOnly;
  }
  const auto range = std::ranges::lower_bound(kPunctuationAfterUnicode8, c, {},
                                              [](const auto& r) { return r.second; });
  return range == kPunctuationAfterUnicode8.end() || c < range->first;
}

bool IsUnicodeWord(uint32_t c) {
  if (c < 0x80) return IsIn(c, '0', '9') || IsIn(c | 0x20, 'a', 'z') || c == '_';
  const utf8proc_category_t category = CategoryOf(c);
  if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) return true;
  if (category == UTF8PROC_CATEGORY_PC) return true;
  // Joiners, and the circled and squared letters, which are alphabetic though they are symbols.
  return IsIn(c, 0x200C, 0x200D) || IsIn(c, 0x24B6, 0x24E9) || IsIn(c, 0x1F130, 0x1F149) ||
         IsIn(c, 0x1F150, 0x1F169) || IsIn(c, 0x1F170, 0x1F189);
}

void AppendLowercase(uint32_t c, std::string* text) {
  if (c == 0x130) {
    *text += "i\xCC\x87";
    return;
  }
  AppendUtf8(static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), text);
}

}  // namespace keel::model
