#include "model/chat_template/html_entities.h"

#include <algorithm>
#include <array>
#include <span>

#include "common/text.h"
#include "model/chat_template/code_points.h"
#include "model/chat_template/value.h"

namespace keel::model::jinja {
namespace {

struct Entity {
  std::string_view name;
  char32_t character;
};

// Those that count without a semicolon, too: HTML's oldest.
constexpr Entity kOld[] = {
    {"AElig", 0xc6},  {"AMP", 0x26},    {"Aacute", 0xc1}, {"Acirc", 0xc2},  {"Agrave", 0xc0},
    {"Aring", 0xc5},  {"Atilde", 0xc3}, {"Auml", 0xc4},   {"COPY", 0xa9},   {"Ccedil", 0xc7},
    {"ETH", 0xd0},    {"Eacute", 0xc9}, {"Ecirc", 0xca},  {"Egrave", 0xc8}, {"Euml", 0xcb},
    {"GT", 0x3e},     {"Iacute", 0xcd}, {"Icirc", 0xce},  {"Igrave", 0xcc}, {"Iuml", 0xcf},
    {"LT", 0x3c},     {"Ntilde", 0xd1}, {"Oacute", 0xd3}, {"Ocirc", 0xd4},  {"Ograve", 0xd2},
    {"Oslash", 0xd8}, {"Otilde", 0xd5}, {"Ouml", 0xd6},   {"QUOT", 0x22},   {"REG", 0xae},
    {"THORN", 0xde},  {"Uacute", 0xda}, {"Ucirc", 0xdb},  {"Ugrave", 0xd9}, {"Uuml", 0xdc},
    {"Yacute", 0xdd}, {"aacute", 0xe1}, {"acirc", 0xe2},  {"acute", 0xb4},  {"aelig", 0xe6},
    {"agrave", 0xe0}, {"amp", 0x26},    {"aring", 0xe5},  {"atilde", 0xe3}, {"auml", 0xe4},
    {"brvbar", 0xa6}, {"ccedil", 0xe7}, {"cedil", 0xb8},  {"cent", 0xa2},   {"copy", 0xa9},
    {"curren", 0xa4}, {"deg", 0xb0},    {"divide", 0xf7}, {"eacute", 0xe9}, {"ecirc", 0xea},
    {"egrave", 0xe8}, {"eth", 0xf0},    {"euml", 0xeb},   {"frac12", 0xbd}, {"frac14", 0xbc},
    {"frac34", 0xbe}, {"gt", 0x3e},     {"iacute", 0xed}, {"icirc", 0xee},  {"iexcl", 0xa1},
    {"igrave", 0xec}, {"iquest", 0xbf}, {"iuml", 0xef},   {"laquo", 0xab},  {"lt", 0x3c},
    {"macr", 0xaf},   {"micro", 0xb5},  {"middot", 0xb7}, {"nbsp", 0xa0},   {"not", 0xac},
    {"ntilde", 0xf1}, {"oacute", 0xf3}, {"ocirc", 0xf4},  {"ograve", 0xf2}, {"ordf", 0xaa},
    {"ordm", 0xba},   {"oslash", 0xf8}, {"otilde", 0xf5}, {"ouml", 0xf6},   {"para", 0xb6},
    {"plusmn", 0xb1}, {"pound", 0xa3},  {"quot", 0x22},   {"raquo", 0xbb},  {"reg", 0xae},
    {"sect", 0xa7},   {"shy", 0xad},    {"sup1", 0xb9},   {"sup2", 0xb2},   {"sup3", 0xb3},
    {"szlig", 0xdf},  {"thorn", 0xfe},  {"times", 0xd7},  {"uacute", 0xfa}, {"ucirc", 0xfb},
    {"ugrave", 0xf9}, {"uml", 0xa8},    {"uuml", 0xfc},   {"yacute", 0xfd}, {"yen", 0xa5},
    {"yuml", 0xff},
};

constexpr Entity kOthers[] = {
    {"apos", 0x27},     {"hellip", 0x2026}, {"mdash", 0x2014},  {"ndash", 0x2013},
    {"lsquo", 0x2018},  {"rsquo", 0x2019},  {"ldquo", 0x201c},  {"rdquo", 0x201d},
    {"sbquo", 0x201a},  {"bdquo", 0x201e},  {"bull", 0x2022},   {"trade", 0x2122},
    {"euro", 0x20ac},   {"larr", 0x2190},   {"rarr", 0x2192},   {"uarr", 0x2191},
    {"darr", 0x2193},   {"harr", 0x2194},   {"le", 0x2264},     {"ge", 0x2265},
    {"ne", 0x2260},     {"infin", 0x221e},  {"minus", 0x2212},  {"lsaquo", 0x2039},
    {"rsaquo", 0x203a}, {"permil", 0x2030}, {"dagger", 0x2020}, {"Dagger", 0x2021},
    {"prime", 0x2032},  {"alpha", 0x3b1},   {"beta", 0x3b2},    {"gamma", 0x3b3},
    {"delta", 0x3b4},   {"epsilon", 0x3b5}, {"lambda", 0x3bb},  {"mu", 0x3bc},
    {"pi", 0x3c0},      {"sigma", 0x3c3},   {"Sigma", 0x3a3},   {"Omega", 0x3a9},
    {"omega", 0x3c9},   {"OElig", 0x152},   {"oelig", 0x153},   {"Scaron", 0x160},
    {"scaron", 0x161},  {"Yuml", 0x178},    {"tilde", 0x2dc},   {"circ", 0x2c6},
    {"ensp", 0x2002},   {"emsp", 0x2003},   {"thinsp", 0x2009}, {"zwnj", 0x200c},
    {"zwj", 0x200d},    {"lrm", 0x200e},    {"rlm", 0x200f},    {"check", 0x2713},
    {"star", 0x2606},   {"hearts", 0x2665}, {"sum", 0x2211},    {"prod", 0x220f},
    {"radic", 0x221a},  {"asymp", 0x2248},  {"equiv", 0x2261},  {"sub", 0x2282},
    {"sup", 0x2283},    {"cap", 0x2229},    {"cup", 0x222a},    {"and", 0x2227},
    {"or", 0x2228},     {"isin", 0x2208},   {"forall", 0x2200}, {"exist", 0x2203},
    {"empty", 0x2205},  {"nabla", 0x2207},  {"part", 0x2202},   {"int", 0x222b},
    {"there4", 0x2234}, {"Delta", 0x394},   {"Pi", 0x3a0},      {"theta", 0x3b8},
    {"phi", 0x3c6},     {"rho", 0x3c1},     {"tau", 0x3c4},
};

// What the numbers 0x80 to 0x9f mean: the characters that Windows has there. 0: none.
constexpr std::array<char32_t, 32> kWindows = {
    0x20ac, 0x81,   0x201a, 0x192,  0x201e, 0x2026, 0x2020, 0x2021, 0x2c6,  0x2030, 0x160,
    0x2039, 0x152,  0x8d,   0x17d,  0x8f,   0x90,   0x2018, 0x2019, 0x201c, 0x201d, 0x2022,
    0x2013, 0x2014, 0x2dc,  0x2122, 0x161,  0x203a, 0x153,  0x9d,   0x17e,  0x178};

const Entity* Find(std::span<const Entity> entities, std::string_view name) {
  const auto found = std::find_if(entities.begin(), entities.end(),
                                  [&](const Entity& one) { return one.name == name; });
  return found == entities.end() ? nullptr : &*found;
}

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
  const Entity* found = Find(kOld, name);
  if (found == nullptr && closed) {
    found = Find(kOthers, name);
    const bool letters =
        std::all_of(name.begin(), name.end(), [](char c) { return IsLetter(c) || IsDigit(c); });
    if (found == nullptr && letters)
      Fail("the entity '&" + std::string(name) + ";' is not supported");
  }
  if (found != nullptr) {
    AppendCharacter(found->character, out);
    return closed ? end + 1 : end;
  }
  // The longest name of the old ones that it begins with.
  for (size_t length = name.size(); length > 1; --length) {
    found = Find(kOld, name.substr(0, length));
    if (found == nullptr) continue;
    AppendCharacter(found->character, out);
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
