#include "model/tokenizer/pipeline/word_scanner.h"

#include <array>

#include "model/tokenizer/text/character_class.h"
#include "model/tokenizer/text/utf8.h"

namespace keel::model {

namespace {

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

// Of DeepSeek's first alternative: the signs of ASCII.
bool IsAsciiSign(char c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
         (c >= '{' && c <= '~');
}
bool IsAsciiLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool IsIdeograph(uint32_t code_point) {
  return (code_point >= 0x4E00 && code_point <= 0x9FA5) ||
         (code_point >= 0x3040 && code_point <= 0x30FF);
}

}  // namespace

WordScanner WordScanner::For(std::string_view expression) {
  WordScanner scanner;
  scanner.classes_ = CharacterClasses();
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
  if (rule_ == Rule::kDigits) return EndOfNotIn(kNumbers, text, at);
  if (rule_ == Rule::kIdeographs) {
    while (at < text.size()) {
      const CodePoint c = CodePointAt(text, at);
      if (IsIdeograph(c.value)) return at;
      at += c.length;
    }
  }
  return at;
}

size_t WordScanner::MatchEnd(std::string_view text, size_t at) const {
  switch (rule_) {
    case Rule::kNone:
      return at;
    case Rule::kIdeographs:
      return IdeographsEnd(text, at);
    case Rule::kDeepSeek:
      return DeepSeekEnd(text, at);
    case Rule::kDigits:
      return DigitsEnd(text, at);
    case Rule::kGpt2:
      return Gpt2End(text, at);
    case Rule::kLlama3:
      return Llama3End(text, at);
    case Rule::kWords:
      return WordEnd(text, at);
    case Rule::kCasedWords:
      return CasedWordEnd(text, at);
  }
  return at;
}

inline WordScanner::Character WordScanner::At(std::string_view text, size_t at) const {
  if (at >= text.size()) return {0, at};
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < 0x80) return {classes_[byte], at + 1};
  const CodePoint c = CodePointAt(text, at);
  return {classes_[c.value], at + c.length};
}

// The first place from `at` on whose character is in none of the classes.
inline size_t WordScanner::EndOfIn(uint8_t classes, std::string_view text, size_t at) const {
  for (Character c = At(text, at); (c.classes & classes) != 0; c = At(text, at)) at = c.end;
  return at;
}

// The first place from `at` on whose character is in one of them.
inline size_t WordScanner::EndOfNotIn(uint8_t classes, std::string_view text, size_t at) const {
  for (Character c = At(text, at); at < text.size() && (c.classes & classes) == 0;
       c = At(text, at)) {
    at = c.end;
  }
  return at;
}

// The end of the 's, 't, 're, 've, 'm, 'll or 'd at the apostrophe at `at`; `at` itself for none.
// GPT-2's are small letters; to the others either case is the same, and so may a letter be that is
// not ASCII, such as the long s: then nothing is said.
std::optional<size_t> WordScanner::ContractionEnd(std::string_view text, size_t at) const {
  const auto letter = [&](size_t i) -> unsigned char {
    if (at + i >= text.size()) return 0;
    const auto byte = static_cast<unsigned char>(text[at + i]);
    return rule_ != Rule::kGpt2 && byte >= 'A' && byte <= 'Z' ? byte + ('a' - 'A') : byte;
  };
  const unsigned char first = letter(1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
  if (first >= 0x80 && rule_ != Rule::kGpt2) return std::nullopt;
  if (first != 'l' && first != 'r' && first != 'v') return at;
  const unsigned char second = letter(2);
  if (second >= 0x80 && rule_ != Rule::kGpt2) return std::nullopt;
  return second == (first == 'l' ? 'l' : 'e') ? at + 3 : at;
}

// A space or nothing, or whatever is not a letter, a digit or a newline, which the expression may
// want to see; then letters.
size_t WordScanner::WordEnd(std::string_view text, size_t at) const {
  const size_t begin = at + (text[at] == ' ' ? 1 : 0);
  const size_t end = EndOfIn(kLetters, text, begin);
  return end == begin ? at : end;
}

// Of o200k_base's first two alternatives, with the contraction that may follow.
size_t WordScanner::CasedWordEnd(std::string_view text, size_t at) const {
  const size_t begin = at + (text[at] == ' ' ? 1 : 0);
  if ((At(text, begin).classes & kMarks) != 0) return at;  // may be what stands before a word
  constexpr uint8_t kEither = kCaseless | kMarks;
  // 1. Capitals and then small letters, of which each may be neither: as many as possible of the
  // first, and one at least of the second.
  size_t last = begin;  // where the last of the first begins that may be of the second
  size_t end = begin;
  for (Character c = At(text, end); (c.classes & (kCapitals | kEither)) != 0; c = At(text, end)) {
    if ((c.classes & kEither) != 0) last = c.end;
    end = c.end;
  }
  const size_t smalls = EndOfIn(kSmalls | kEither, text, end);
  if (smalls > end) {
    end = smalls;
  } else if (last > begin) {
    end = last;
  }
  // 2. Or capitals alone.
  if (end == begin || end == text.size() || text[end] != '\'') return end == begin ? at : end;
  return ContractionEnd(text, end).value_or(at);
}

// \s+(?!\S)|\s+ : all of the spaces but the last one when something follows.
size_t WordScanner::SpacesEnd(std::string_view text, size_t at) const {
  size_t last = at;
  size_t end = at;
  for (Character c = At(text, end); (c.classes & kSpaces) != 0; c = At(text, end)) {
    last = end;
    end = c.end;
  }
  return end < text.size() && last > at ? last : end;
}

// \s*[\r\n]+|\s+(?!\S)|\s+ : up to the last newline among the spaces, if there is one.
size_t WordScanner::LineEnd(std::string_view text, size_t at) const {
  size_t newline = at;
  size_t end = at;
  for (Character c = At(text, end); (c.classes & kSpaces) != 0; c = At(text, end)) {
    end = c.end;
    if ((c.classes & kNewlines) != 0) newline = end;
  }
  return newline > at ? newline : SpacesEnd(text, at);
}

// A contraction; a space or nothing before letters, digits or signs; else spaces.
size_t WordScanner::Gpt2End(std::string_view text, size_t at) const {
  if (text[at] == '\'') {
    const std::optional<size_t> end = ContractionEnd(text, at);
    if (end != at) return end.value_or(at);
  }
  const size_t begin = at + (text[at] == ' ' ? 1 : 0);
  const uint8_t first = At(text, begin).classes;
  if (begin == text.size() || (first & kSpaces) != 0) return SpacesEnd(text, at);
  if ((first & kLetters) != 0) return EndOfIn(kLetters, text, begin);
  if ((first & kNumbers) != 0) return EndOfIn(kNumbers, text, begin);
  return EndOfNotIn(kLetters | kNumbers | kSpaces, text, begin);
}

size_t WordScanner::Llama3End(std::string_view text, size_t at) const {
  if (text[at] == '\'') {
    const std::optional<size_t> end = ContractionEnd(text, at);
    if (end != at) return end.value_or(at);
  }
  const Character first = At(text, at);
  // 1. Letters, with one character before them that is neither a newline nor a digit.
  const bool leads = (first.classes & (kLetters | kNumbers | kNewlines)) == 0;
  const size_t word = leads ? first.end : at;
  const size_t letters = EndOfIn(kLetters, text, word);
  if (letters > word) return letters;
  // 2. Digits.
  if ((first.classes & kNumbers) != 0) return DigitsEnd(text, at);
  // 3. Signs, with a space or nothing before them and newlines after them.
  const size_t sign = at + (text[at] == ' ' ? 1 : 0);
  const size_t signs = EndOfNotIn(kLetters | kNumbers | kSpaces, text, sign);
  if (signs > sign) return EndOfIn(kNewlines, text, signs);
  // 4. Spaces.
  return LineEnd(text, at);
}

size_t WordScanner::DigitsEnd(std::string_view text, size_t at) const {
  for (size_t i = 0; i < max_digits_; ++i) {
    const Character c = At(text, at);
    if ((c.classes & kNumbers) == 0) break;
    at = c.end;
  }
  return at;
}

size_t WordScanner::IdeographsEnd(std::string_view text, size_t at) const {
  while (at < text.size()) {
    const CodePoint c = CodePointAt(text, at);
    if (!IsIdeograph(c.value)) break;
    at += c.length;
  }
  return at;
}

size_t WordScanner::DeepSeekEnd(std::string_view text, size_t at) const {
  // 1. A sign and the letters behind it that are ASCII, whatever follows them.
  if (IsAsciiSign(text[at])) {
    size_t end = at + 1;
    while (end < text.size() && IsAsciiLetter(text[end])) ++end;
    if (end > at + 1) return end;
  }
  // 2. Letters and marks, with one character before them that is none of letter, newline and sign:
  // a mark may be that, too.
  const Character first = At(text, at);
  const bool leads = (first.classes & (kLetters | kSigns | kNewlines)) == 0;
  const size_t word = leads ? first.end : at;
  const size_t letters = EndOfIn(kLetters | kMarks, text, word);
  if (letters > word) return letters;
  if ((first.classes & kMarks) != 0) return first.end;
  // 3. Signs, with a space or nothing before them and newlines after them.
  const size_t sign = at + (text[at] == ' ' ? 1 : 0);
  const size_t signs = EndOfIn(kSigns, text, sign);
  if (signs > sign) return EndOfIn(kNewlines, text, signs);
  // 4. Spaces; nothing matches at a digit.
  return LineEnd(text, at);
}

}  // namespace keel::model
