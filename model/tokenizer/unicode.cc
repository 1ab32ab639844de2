#include "model/tokenizer/unicode.h"

#include <utf8proc.h>

#include "model/tokenizer/utf8.h"

namespace keel::model {

namespace {

utf8proc_category_t CategoryOf(uint32_t code_point) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
}

bool IsIn(uint32_t code_point, uint32_t low, uint32_t high) {
  return code_point >= low && code_point <= high;
}

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
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
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
