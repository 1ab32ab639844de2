#include "model/tokenizer/word_scanner.h"

#include <array>

namespace keel::model {

namespace {

// Of an ASCII character, as the expressions have it; anything else is kOther.
enum class Kind : unsigned char { kLower, kUpper, kDigit, kSpace, kNewline, kSign, kOther };

constexpr std::array<Kind, 256> MakeKinds() {
  std::array<Kind, 256> kinds{};
  for (size_t c = 0; c < 256; ++c) {
    kinds[c] = c < 0x80 ? Kind::kSign : Kind::kOther;
    if (c >= 'a' && c <= 'z') kinds[c] = Kind::kLower;
    if (c >= 'A' && c <= 'Z') kinds[c] = Kind::kUpper;
    if (c >= '0' && c <= '9') kinds[c] = Kind::kDigit;
    if (c == ' ' || c == '\t' || c == '\v' || c == '\f') kinds[c] = Kind::kSpace;
    if (c == '\n' || c == '\r') kinds[c] = Kind::kNewline;
  }
  return kinds;
}
constexpr std::array<Kind, 256> kKinds = MakeKinds();

Kind KindAt(std::string_view text, size_t at) {
  return kKinds[static_cast<unsigned char>(text[at])];
}
bool IsLetter(Kind kind) { return kind == Kind::kLower || kind == Kind::kUpper; }
bool IsSpace(Kind kind) { return kind == Kind::kSpace || kind == Kind::kNewline; }

// The first place from `at` on whose kind is not wanted.
template <typename Wanted>
size_t RunEnd(std::string_view text, size_t at, const Wanted& wanted) {
  while (at < text.size() && wanted(KindAt(text, at))) ++at;
  return at;
}
bool EndsInAscii(std::string_view text, size_t end) {
  return end == text.size() || KindAt(text, end) != Kind::kOther;
}

// \s+(?!\S)|\s+ for the spaces [at, end): all but the last one when something follows.
size_t SpacesEnd(std::string_view text, size_t at, size_t end) {
  return end < text.size() && end - at > 1 ? end - 1 : end;
}

// A word with letters only: what comes before it begins with an apostrophe. In order: GPT-2,
// Llama-3 and Qwen2, cl100k_base in tiktoken's two spellings.
constexpr std::array<std::string_view, 5> kLettersFirst = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)",
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|)",
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|)",
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|)",
};

// What follows in all but the first of these, with the digits that a number may have.
constexpr std::string_view kThreeDigits = R"(\p{N}{1,3}|)";
constexpr std::string_view kOneDigit = R"(\p{N}|)";
constexpr std::string_view kRest = R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt2Rest = R"( ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// o200k_base.
constexpr std::string_view kCasedFirst =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)";

// DeepSeek-V3's three, one after another.
constexpr std::string_view kDeepSeekDigits = R"(\p{N}{1,3})";
constexpr std::string_view kDeepSeekIdeographs = "[一-龥぀-ゟ゠-ヿ]+";
constexpr std::string_view kDeepSeekRest =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|)"
    "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
    "\\s*[\r\n]+|\\s+(?!\\S)|\\s+";

// Of \p{P} and \p{S}, which have all of ASCII that is printed, and is no letter, digit or space.
bool IsPrintedSign(char c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
         (c >= '{' && c <= '~');
}
size_t PrintedSignsEnd(std::string_view text, size_t at) {
  while (at < text.size() && IsPrintedSign(text[at])) ++at;
  return at;
}

// \s*[\r\n]+|\s+(?!\S)|\s+ : up to the last newline among the spaces, if there is one. `at`: where
// a character that is not ASCII has a say, or there is no space.
size_t SpaceOrLineEnd(std::string_view text, size_t at) {
  const size_t end = RunEnd(text, at, IsSpace);
  if (!EndsInAscii(text, end)) return at;
  for (size_t last = end; last > at; --last) {
    if (KindAt(text, last - 1) == Kind::kNewline) return last;
  }
  return SpacesEnd(text, at, end);
}

}  // namespace

WordScanner WordScanner::For(std::string_view expression) {
  WordScanner scanner;
  if (expression == kDeepSeekDigits) scanner.rule_ = Rule::kDigits;
  if (expression == kDeepSeekIdeographs) scanner.rule_ = Rule::kIdeographs;
  if (expression == kDeepSeekRest) scanner.rule_ = Rule::kDeepSeek;
  if (expression.starts_with(kCasedFirst)) scanner.rule_ = Rule::kCasedWords;
  for (const std::string_view first : kLettersFirst) {
    if (!expression.starts_with(first)) continue;
    scanner.rule_ = Rule::kWords;
    std::string_view rest = expression.substr(first.size());
    if (first == kLettersFirst[0]) {
      if (rest == kGpt2Rest) scanner.rule_ = Rule::kGpt2;
      continue;
    }
    scanner.max_digits_ = rest.starts_with(kThreeDigits) ? 3 : 1;
    const std::string_view digits = scanner.max_digits_ == 3 ? kThreeDigits : kOneDigit;
    if (!rest.starts_with(digits)) continue;
    rest.remove_prefix(digits.size());
    if (rest == kRest) scanner.rule_ = Rule::kLlama3;
  }
  return scanner;
}

size_t WordScanner::MayBegin(std::string_view text, size_t at) const {
  if (rule_ == Rule::kDigits) {
    return RunEnd(text, at, [](Kind kind) { return kind != Kind::kDigit && kind != Kind::kOther; });
  }
  if (rule_ == Rule::kIdeographs)
    return RunEnd(text, at, [](Kind kind) { return kind != Kind::kOther; });
  return at;
}

size_t WordScanner::MatchEnd(std::string_view text, size_t at) const {
  switch (rule_) {
    case Rule::kNone:
    case Rule::kIdeographs:
      return at;
    case Rule::kDeepSeek:
      return DeepSeekEnd(text, at);
    case Rule::kDigits:
      return DigitsEnd(text, at);
    case Rule::kGpt2:
      return Gpt2End(text, at);
    case Rule::kLlama3:
      return Llama3End(text, at);
    case Rule::kWords:
    case Rule::kCasedWords:
      return WordEnd(text, at);
  }
  return at;
}

size_t WordScanner::WordEnd(std::string_view text, size_t at) const {
  const size_t begin = at + (text[at] == ' ' ? 1 : 0);
  size_t end = begin;
  if (rule_ == Rule::kWords) {
    end = RunEnd(text, begin, IsLetter);
  } else {
    end = RunEnd(text, begin, [](Kind kind) { return kind == Kind::kUpper; });
    end = RunEnd(text, end, [](Kind kind) { return kind == Kind::kLower; });
    if (end < text.size() && text[end] == '\'') return at;
  }
  return end == begin || !EndsInAscii(text, end) ? at : end;
}

// A space or nothing before letters, digits or signs; else spaces.
size_t WordScanner::Gpt2End(std::string_view text, size_t at) const {
  if (text[at] == '\'') return at;
  const size_t begin = at + (text[at] == ' ' ? 1 : 0);
  const Kind kind = begin < text.size() ? KindAt(text, begin) : Kind::kSpace;
  if (kind == Kind::kOther) return at;
  if (IsSpace(kind)) {
    const size_t end = RunEnd(text, at, IsSpace);
    return EndsInAscii(text, end) ? SpacesEnd(text, at, end) : at;
  }
  const size_t end =
      RunEnd(text, begin, [kind](Kind k) { return IsLetter(kind) ? IsLetter(k) : k == kind; });
  return EndsInAscii(text, end) ? end : at;
}

size_t WordScanner::Llama3End(std::string_view text, size_t at) const {
  const Kind kind = KindAt(text, at);
  if (text[at] == '\'' || kind == Kind::kOther) return at;
  // 1. Letters, with one character before them that is neither a newline nor a digit.
  const bool may_lead = kind == Kind::kSpace || kind == Kind::kSign;
  const size_t word = at + (may_lead ? 1 : 0);
  if (may_lead && !EndsInAscii(text, word)) return at;
  if (word < text.size() && IsLetter(KindAt(text, word))) {
    const size_t end = RunEnd(text, word, IsLetter);
    return EndsInAscii(text, end) ? end : at;
  }
  // 2. Digits.
  if (kind == Kind::kDigit) return DigitsEnd(text, at);
  // 3. Signs, with a space or nothing before them and newlines after them.
  const size_t sign = at + (text[at] == ' ' ? 1 : 0);
  if (sign < text.size() && KindAt(text, sign) == Kind::kSign) {
    const size_t end = RunEnd(text, sign, [](Kind k) { return k == Kind::kSign; });
    if (!EndsInAscii(text, end)) return at;
    return RunEnd(text, end, [](Kind k) { return k == Kind::kNewline; });
  }
  // 4. Spaces.
  return SpaceOrLineEnd(text, at);
}

size_t WordScanner::DigitsEnd(std::string_view text, size_t at) const {
  size_t end = at;
  while (end < text.size() && end - at < max_digits_ && KindAt(text, end) == Kind::kDigit) ++end;
  return end - at == max_digits_ || EndsInAscii(text, end) ? end : at;
}

size_t WordScanner::DeepSeekEnd(std::string_view text, size_t at) const {
  const Kind kind = KindAt(text, at);
  if (kind == Kind::kOther) return at;
  const bool sign = IsPrintedSign(text[at]);
  // 1. A sign and the letters behind it that are ASCII, whatever follows them.
  if (sign) {
    const size_t end = RunEnd(text, at + 1, IsLetter);
    if (end > at + 1) return end;
  }
  // 2. Letters, with one character before them that is neither a newline nor a sign.
  const bool may_lead = !sign && !IsLetter(kind) && kind != Kind::kNewline;
  const size_t word = at + (may_lead ? 1 : 0);
  if (may_lead && !EndsInAscii(text, word)) return at;
  if (word < text.size() && IsLetter(KindAt(text, word))) {
    const size_t end = RunEnd(text, word, IsLetter);
    return EndsInAscii(text, end) ? end : at;
  }
  // 3. Signs, with a space or nothing before them and newlines after them.
  const size_t first = at + (text[at] == ' ' ? 1 : 0);
  const size_t last = PrintedSignsEnd(text, first);
  if (last > first) {
    if (!EndsInAscii(text, last)) return at;
    return RunEnd(text, last, [](Kind k) { return k == Kind::kNewline; });
  }
  // 4. Spaces; nothing matches at a digit.
  return SpaceOrLineEnd(text, at);
}

}  // namespace keel::model
