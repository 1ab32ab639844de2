#include "turns/python_text.h"

#include <cstdint>
#include <utility>

#include "common/text.h"
#include "model/tokenizer/text/utf8.h"

namespace keel::turns {

namespace {

constexpr int kMaxDepth = 64;

void SkipSpace(std::string_view* text) {
  while (!text->empty() && IsSpace(text->front())) text->remove_prefix(1);
}

bool Take(std::string_view* text, std::string_view word) {
  if (!text->starts_with(word)) return false;
  text->remove_prefix(word.size());
  return true;
}

// As Take, with white space before the word or not.
bool TakeSpaced(std::string_view* text, std::string_view word) {
  SkipSpace(text);
  return Take(text, word);
}

// Up to `most` digits of `base`, at least `least`.
std::optional<uint32_t> TakeDigits(std::string_view* text, uint32_t base, size_t least,
                                   size_t most) {
  uint32_t value = 0;
  size_t count = 0;
  for (; count < most && !text->empty(); ++count, text->remove_prefix(1)) {
    const char c = text->front();
    uint32_t digit = base;
    if (IsDigit(c)) digit = static_cast<uint32_t>(c - '0');
    if (IsLetter(c)) digit = static_cast<uint32_t>((c | 0x20) - 'a' + 10);
    if (digit >= base) break;
    value = value * base + digit;
  }
  if (count < least) return std::nullopt;
  return value;
}

bool IsHighSurrogate(uint32_t code) { return code >= 0xD800 && code < 0xDC00; }
bool IsSurrogate(uint32_t code) { return code >= 0xD800 && code < 0xE000; }

// The character that \x, \u or \U names; two halves of UTF-16 are one. Half a one is U+FFFD.
bool TakeNamedCharacter(std::string_view* text, size_t digits, std::string* out) {
  const auto first = TakeDigits(text, 16, digits, digits);
  if (!first || *first > 0x10FFFF) return false;
  uint32_t code = *first;
  if (IsHighSurrogate(code) && text->starts_with("\\u")) {
    std::string_view rest = text->substr(2);
    const auto low = TakeDigits(&rest, 16, 4, 4);
    if (low && IsSurrogate(*low) && !IsHighSurrogate(*low)) {
      code = 0x10000 + ((code - 0xD800) << 10) + (*low - 0xDC00);
      *text = rest;
    }
  }
  model::AppendUtf8(IsSurrogate(code) ? 0xFFFD : code, out);
  return true;
}

// What stands behind a backslash.
bool TakeEscape(std::string_view* text, std::string* out) {
  if (text->empty()) return false;
  const char c = text->front();
  if (c >= '0' && c <= '7') {
    model::AppendUtf8(*TakeDigits(text, 8, 1, 3), out);
    return true;
  }
  text->remove_prefix(1);
  constexpr std::string_view kNames = "abfnrtv\\'\"", kMeanings = "\a\b\f\n\r\t\v\\'\"";
  if (const size_t at = kNames.find(c); at != std::string_view::npos) {
    *out += kMeanings[at];
  } else if (c == 'x' || c == 'u' || c == 'U') {
    return TakeNamedCharacter(text, c == 'x' ? 2 : c == 'u' ? 4 : 8, out);
  } else if (c == 'N') {
    return false;          // a character by its name
  } else if (c != '\n') {  // a line that goes on
    *out += '\\';
    *out += c;
  }
  return true;
}

std::optional<Json> TakeText(std::string_view* text) {
  const std::string_view one = text->substr(0, 1);
  const std::string three(3, one.front());
  const std::string_view quote = text->starts_with(three) ? std::string_view(three) : one;
  text->remove_prefix(quote.size());
  std::string value;
  while (!Take(text, quote)) {
    if (text->empty()) return std::nullopt;
    if (Take(text, "\\")) {
      if (!TakeEscape(text, &value)) return std::nullopt;
    } else {
      value += text->front();
      text->remove_prefix(1);
    }
  }
  return Json(std::move(value));
}

// JSON's numbers, and those that begin or end with the point, have a plus or underscores.
std::optional<Json> TakeNumber(std::string_view* text) {
  std::string number;
  if (Take(text, "-")) {
    number = "-";
  } else {
    Take(text, "+");
  }
  SkipSpace(text);
  const auto digits = [&] {
    const size_t before = number.size();
    // An underscore stands between two digits.
    while (!text->empty() &&
           (IsDigit(text->front()) || (text->front() == '_' && number.size() > before &&
                                       text->size() > 1 && IsDigit((*text)[1])))) {
      if (text->front() != '_') number += text->front();
      text->remove_prefix(1);
    }
    return number.size() - before;
  };
  const size_t whole = digits();
  if (whole == 0) number += '0';
  if (Take(text, ".")) {
    number += '.';
    const size_t fraction = digits();
    if (fraction == 0) number += '0';
    if (whole + fraction == 0) return std::nullopt;
  } else if (whole == 0) {
    return std::nullopt;
  }
  if (Take(text, "e") || Take(text, "E")) {
    number += 'e';
    if (!text->empty() && (text->front() == '-' || text->front() == '+')) {
      number += text->front();
      text->remove_prefix(1);
    }
    if (digits() == 0) return std::nullopt;
  }
  // Of hexadecimal numbers and complex ones there is a rest.
  if (!text->empty() && (IsLetter(text->front()) || text->front() == '_')) return std::nullopt;
  auto value = ParseJson(number, "a number");
  if (!value.ok()) return std::nullopt;
  return std::move(*value);
}

std::string_view TakeWord(std::string_view* text) {
  size_t size = 0;
  while (size < text->size() &&
         (IsLetter((*text)[size]) || (*text)[size] == '_' || (size > 0 && IsDigit((*text)[size]))))
    ++size;
  const std::string_view word = text->substr(0, size);
  text->remove_prefix(size);
  return word;
}

std::optional<Json> TakeNamedValue(std::string_view* text) {
  const std::string_view word = TakeWord(text);
  if (word == "True" || word == "true") return Json(true);
  if (word == "False" || word == "false") return Json(false);
  if (word == "None" || word == "null") return Json(nullptr);
  return std::nullopt;
}

std::optional<Json> TakeValue(std::string_view* text, int depth);

// What stands behind an opening bracket, up to `close`: items with commas between them, one behind
// the last or not. `take_item` takes one; false: it is none.
template <typename TakeItem>
bool TakeItems(std::string_view* text, std::string_view close, TakeItem take_item) {
  while (!TakeSpaced(text, close)) {
    if (!take_item()) return false;
    if (TakeSpaced(text, ",")) continue;
    return TakeSpaced(text, close);
  }
  return true;
}

std::optional<Json> TakeList(std::string_view* text, std::string_view close, int depth) {
  Json list = Json::array();
  bool comma = false;
  const bool ended = TakeItems(text, close, [&] {
    auto item = TakeValue(text, depth);
    if (item) list.push_back(std::move(*item));
    SkipSpace(text);
    comma = text->starts_with(',');
    return item.has_value();
  });
  if (!ended) return std::nullopt;
  // (1) is 1; (1,) is a tuple.
  if (close == ")" && list.size() == 1 && !comma) return list.front();
  return list;
}

std::optional<Json> TakeDict(std::string_view* text, int depth) {
  Json dict = Json::object();
  const bool ended = TakeItems(text, "}", [&] {
    const auto key = TakeValue(text, depth);
    if (!key || !key->is_string() || !TakeSpaced(text, ":")) return false;
    auto value = TakeValue(text, depth);
    if (!value) return false;
    dict[key->get<std::string>()] = std::move(*value);
    return true;
  });
  if (!ended) return std::nullopt;
  return dict;
}

std::optional<Json> TakeValue(std::string_view* text, int depth) {
  SkipSpace(text);
  if (text->empty() || depth == kMaxDepth) return std::nullopt;
  const char c = text->front();
  if (c == '"' || c == '\'') {
    auto value = TakeText(text);
    // Texts that stand beside each other are one.
    for (SkipSpace(text); value && (text->starts_with('"') || text->starts_with('\''));
         SkipSpace(text)) {
      const auto more = TakeText(text);
      if (!more) return std::nullopt;
      value = value->get<std::string>() + more->get<std::string>();
    }
    return value;
  }
  if (IsDigit(c) || c == '-' || c == '+' || c == '.') return TakeNumber(text);
  if (IsLetter(c)) return TakeNamedValue(text);
  text->remove_prefix(1);
  if (c == '[') return TakeList(text, "]", depth + 1);
  if (c == '(') return TakeList(text, ")", depth + 1);
  if (c == '{') return TakeDict(text, depth + 1);
  return std::nullopt;
}

}  // namespace

std::optional<Json> TakePythonValue(std::string_view* text) { return TakeValue(text, 0); }

std::optional<PythonCall> TakePythonCall(std::string_view* text) {
  PythonCall call;
  do {
    SkipSpace(text);
    const std::string_view word = TakeWord(text);
    if (word.empty()) return std::nullopt;
    if (!call.name.empty()) call.name += '.';
    call.name += word;
  } while (TakeSpaced(text, "."));
  if (!TakeSpaced(text, "(")) return std::nullopt;
  const bool ended = TakeItems(text, ")", [&] {
    SkipSpace(text);
    const std::string key(TakeWord(text));
    if (key.empty() || call.arguments.contains(key) || !TakeSpaced(text, "=")) return false;
    auto value = TakePythonValue(text);
    if (!value) return false;
    call.arguments[key] = std::move(*value);
    return true;
  });
  if (!ended) return std::nullopt;
  return call;
}

}  // namespace keel::turns
