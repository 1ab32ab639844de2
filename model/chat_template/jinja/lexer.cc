#include "model/chat_template/jinja/lexer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>

#include "common/python_space.h"
#include "common/text.h"
#include "model/chat_template/jinja/value.h"
#include "model/chat_template/unicode/code_points.h"

namespace keel::model::jinja {
namespace {

bool IsNameStart(char c) { return IsLetter(c) || c == '_'; }
bool IsNameCharacter(char c) { return IsNameStart(c) || IsDigit(c); }

// Letters of any script, and what may stand behind one: combining marks, digits, connectors.
bool IsNamePart(char32_t character, bool first) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(character));
  const bool letter = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
  if (letter || category == UTF8PROC_CATEGORY_NL || first)
    return letter || category == UTF8PROC_CATEGORY_NL;
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
         category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_PC;
}

// Python takes a name for its NFKC form, in some of the places where Jinja has it.
bool IsNormalized(const std::string& name) {
  utf8proc_uint8_t* normal = utf8proc_NFKC(reinterpret_cast<const utf8proc_uint8_t*>(name.c_str()));
  const bool same = normal != nullptr && name == reinterpret_cast<const char*>(normal);
  std::free(normal);
  return same;
}

int HexDigit(char c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Every line ends with "\n", and the last one's end is dropped, as jinja drops it.
std::string Normalized(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text.push_back(source[i]);
      continue;
    }
    text.push_back('\n');
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string text) : text_(std::move(text)) {}

  std::vector<Token> Run() {
    while (at_ < text_.size()) {
      const size_t tag = FindTag(at_);
      if (tag == std::string::npos) {
        AddText(text_.substr(at_));
        Advance(text_.size());
        break;
      }
      Tag(tag);
    }
    Add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  bool At(size_t position, std::string_view what) const {
    return text_.compare(position, what.size(), what) == 0;
  }

  size_t FindTag(size_t from) const {
    for (size_t i = text_.find('{', from); i != std::string::npos; i = text_.find('{', i + 1)) {
      if (i + 1 < text_.size() &&
          (text_[i + 1] == '%' || text_[i + 1] == '{' || text_[i + 1] == '#')) {
        return i;
      }
    }
    return std::string::npos;
  }

  void Advance(size_t to) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    at_ = to;
  }

  [[noreturn]] void Refuse(const std::string& message) const { throw Failure{message, line_}; }

  void Add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void AddText(std::string text) {
    if (!text.empty()) Add(TokenKind::kText, std::move(text));
  }

  size_t SkipSpace(size_t position) const {
    while (position < text_.size()) {
      size_t next = position;
      if (!IsPythonSpace(NextCharacter(text_, &next))) break;
      position = next;
    }
    return position;
  }

  // Text before a tag that begins at `tag`. `sign`: what follows the tag's two characters.
  void TextBefore(size_t tag, char sign, bool strips_line) {
    std::string_view text = std::string_view(text_).substr(at_, tag - at_);
    if (sign == '-') {
      text = StripText(text, StripSide::kRight);
    } else if (sign != '+' && strips_line) {
      // Nothing but white space between the line's begin and the tag: it goes.
      const size_t newline = text.rfind('\n');
      const size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
      if ((begin > 0 || line_starts_) && StripText(text.substr(begin), StripSide::kBoth).empty()) {
        text = text.substr(0, begin);
      }
    }
    AddText(std::string(text));
  }

  char SignAt(size_t position) const {
    const char c = position < text_.size() ? text_[position] : '\0';
    return c == '-' || c == '+' ? c : '\0';
  }

  // Where a tag's end has led to: behind it and the white space that goes with it. npos: not an
  // end.
  size_t TagEnd(size_t position, char kind, bool trims) const {
    const std::string closing = {kind, '}'};
    if (At(position, "-" + closing)) return SkipSpace(position + 3);
    if (kind != '}' && At(position, "+" + closing)) return position + 3;
    if (!At(position, closing)) return std::string::npos;
    const size_t end = position + 2;
    return trims && end < text_.size() && text_[end] == '\n' ? end + 1 : end;
  }

  void GoTo(size_t position) {
    line_starts_ = text_[position - 1] == '\n';
    Advance(position);
  }

  void Tag(size_t tag) {
    const char kind = text_[tag + 1];
    const char sign = SignAt(tag + 2);
    TextBefore(tag, sign, kind != '{');
    Advance(tag);
    const size_t inside = tag + 2 + (sign == '\0' ? 0 : 1);
    if (kind == '#') return Comment(inside);
    if (kind == '%' && Raw(inside)) return;
    Add(kind == '%' ? TokenKind::kBlockBegin : TokenKind::kPrintBegin, "");
    Advance(inside);
    Inside(kind == '%' ? '%' : '}');
  }

  // One that nothing follows needs no end, and no more does {% raw %}: so it is in Jinja.
  void Comment(size_t inside) {
    if (inside == text_.size()) return Advance(inside);
    for (size_t i = inside; i < text_.size(); ++i) {
      const size_t end = TagEnd(i, '#', true);
      if (end != std::string::npos) return GoTo(end);
    }
    Refuse("a comment has no end");
  }

  // {% raw %} ... {% endraw %}: the text between them as it is.
  bool Raw(size_t inside) {
    const auto word_tag = [&](size_t position, std::string_view word, bool trims) {
      position = SkipSpace(position);
      if (!At(position, word)) return std::string::npos;
      position = SkipSpace(position + word.size());
      // Jinja ends a tag raw in no "+%}".
      if (word == "raw" && At(position, "+")) return std::string::npos;
      return TagEnd(position, '%', trims);
    };
    const size_t begin = word_tag(inside, "raw", false);
    if (begin == std::string::npos) return false;
    GoTo(begin);
    if (begin == text_.size()) return true;
    for (size_t i = begin; (i = text_.find("{%", i)) != std::string::npos; ++i) {
      const char sign = SignAt(i + 2);
      const size_t end = word_tag(i + 2 + (sign == '\0' ? 0 : 1), "endraw", true);
      if (end == std::string::npos) continue;
      TextBefore(i, sign, true);
      GoTo(end);
      return true;
    }
    Refuse("{% raw %} has no {% endraw %}");
  }

  void Inside(char closing) {
    std::string open;  // the brackets that wait for their end
    while (true) {
      Advance(SkipSpace(at_));
      if (at_ >= text_.size()) Refuse("a tag has no end");
      if (open.empty()) {
        const size_t end = TagEnd(at_, closing, closing == '%');
        if (end != std::string::npos) {
          Add(closing == '%' ? TokenKind::kBlockEnd : TokenKind::kPrintEnd, "");
          return GoTo(end);
        }
      }
      OneToken(&open);
    }
  }

  void OneToken(std::string* open) {
    const char c = text_[at_];
    if (IsNameStart(c) || (c & 0x80) != 0) return Name();
    if (IsDigit(c)) return Number();
    if (c == '"' || c == '\'') return String(c);
    static constexpr std::array<std::string_view, 25> kOperators = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ","};
    for (std::string_view op : kOperators) {
      if (!At(at_, op)) continue;
      Brackets(c, open);
      Add(TokenKind::kOperator, std::string(op));
      return Advance(at_ + op.size());
    }
    Refuse("unexpected character '" + Printable(std::string_view(text_).substr(at_, 4), 4) + "'");
  }

  void Brackets(char c, std::string* open) const {
    if (c == '(') open->push_back(')');
    if (c == '[') open->push_back(']');
    if (c == '{') open->push_back('}');
    if (c != ')' && c != ']' && c != '}') return;
    if (open->empty()) Refuse(std::string("unexpected '") + c + "'");
    if (open->back() != c) {
      Refuse(std::string("unexpected '") + c + "', expected '" + open->back() + "'");
    }
    open->pop_back();
  }

  void Name() {
    size_t end = at_;
    while (end < text_.size()) {
      size_t next = end;
      const char32_t character = NextCharacter(text_, &next);
      const bool part =
          character < 0x80 ? IsNameCharacter(text_[end]) : IsNamePart(character, end == at_);
      if (!part) break;
      end = next;
    }
    std::string name = text_.substr(at_, end - at_);
    if (name.empty() || (end < text_.size() && (text_[end] & 0x80) != 0)) {
      Refuse("unexpected character '" + Printable(std::string_view(text_).substr(end, 4), 4) + "'");
    }
    if (!IsAscii(name) && !IsNormalized(name)) {
      Refuse("the name '" + Printable(name, 40) +
             "' is another in Unicode's form NFKC, and such are not supported");
    }
    Add(TokenKind::kName, std::move(name));
    Advance(end);
  }

  // Digits with single underscores between them.
  size_t Digits(size_t position) const {
    while (position < text_.size() &&
           (IsDigit(text_[position]) ||
            (text_[position] == '_' && position + 1 < text_.size() &&
             IsDigit(text_[position + 1]) && IsDigit(text_[position - 1])))) {
      ++position;
    }
    return position;
  }

  // 0x1f, 0o17, 0b1_0, behind whose 0 stands `letter`. False: it is no such number.
  bool Prefixed(char letter) {
    const int lower = letter | 0x20;
    const int base = lower == 'x' ? 16 : lower == 'o' ? 8 : lower == 'b' ? 2 : 0;
    std::string digits;
    size_t end = at_ + 2;
    while (base > 0 && end < text_.size()) {
      const size_t digit = text_[end] == '_' ? end + 1 : end;
      if (digit >= text_.size() || HexDigit(text_[digit]) < 0 || HexDigit(text_[digit]) >= base)
        break;
      digits.push_back(text_[digit]);
      end = digit + 1;
    }
    if (digits.empty()) return false;
    uint64_t number = 0;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number, base);
    if (read.ec != std::errc() || number > INT64_MAX) Refuse("a whole number is beyond 64 bits");
    Add(TokenKind::kInteger, std::to_string(number));
    Advance(end);
    return true;
  }

  void Number() {
    const auto digit_at = [&](size_t i) { return i < text_.size() && IsDigit(text_[i]); };
    size_t end = Digits(at_);
    const char next = end < text_.size() ? text_[end] : '\0';
    if (end == at_ + 1 && text_[at_] == '0' && Prefixed(next)) return;
    bool real = false;
    // An element's number, as in x.0.1, is no fraction.
    const bool after_dot = at_ > 0 && text_[at_ - 1] == '.';
    if (!after_dot && next == '.' && digit_at(end + 1)) {
      real = true;
      end = Digits(end + 1);
    }
    if (!after_dot && end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      size_t power = end + 1;
      if (power < text_.size() && (text_[power] == '+' || text_[power] == '-')) ++power;
      if (digit_at(power)) {
        real = true;
        end = Digits(power);
      }
    }
    std::string digits = text_.substr(at_, end - at_);
    digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
    if (!real && digits.size() > 1 && digits[0] == '0' &&
        digits.find_first_not_of('0') != std::string::npos) {
      Refuse("a whole number begins with 0");
    }
    Add(real ? TokenKind::kFloat : TokenKind::kInteger, std::move(digits));
    Advance(end);
  }

  void String(char quote) {
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) Refuse("a string has no end");
    Add(TokenKind::kString, Unescaped(std::string_view(text_).substr(at_ + 1, end - at_ - 1)));
    Advance(end + 1);
  }

  std::string Unescaped(std::string_view literal) const {
    std::string out;
    for (size_t i = 0; i < literal.size();) {
      if (literal[i] != '\\') {
        out.push_back(literal[i++]);
        continue;
      }
      ++i;
      if (i >= literal.size()) Refuse("a string ends in a backslash");
      Escape(literal, &i, &out);
    }
    return out;
  }

  // `*i` is at the character after the backslash.
  void Escape(std::string_view literal, size_t* i, std::string* out) const {
    static constexpr std::string_view kShort = "abfnrtv\\'\"";
    static constexpr std::string_view kMeant = "\a\b\f\n\r\t\v\\'\"";
    const char c = literal[*i];
    if (const size_t known = kShort.find(c); known != std::string_view::npos) {
      out->push_back(kMeant[known]);
      ++*i;
    } else if (c == '\n') {
      ++*i;  // A line goes on.
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const int digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      AppendCode(literal.substr(*i + 1, static_cast<size_t>(digits)), digits, 16, out);
      *i += static_cast<size_t>(digits) + 1;
    } else if (c >= '0' && c <= '7') {
      size_t count = 1;
      while (count < 3 && *i + count < literal.size() && literal[*i + count] >= '0' &&
             literal[*i + count] <= '7') {
        ++count;
      }
      AppendCode(literal.substr(*i, count), static_cast<int>(count), 8, out);
      *i += count;
    } else if (c == 'N') {
      Refuse("\\N{name} in a string is not supported");
    } else if ((c & 0x80) != 0) {
      Refuse("a backslash before a character beyond ASCII is not supported");
    } else {
      out->push_back('\\');
      out->push_back(c);
      ++*i;
    }
  }

  void AppendCode(std::string_view digits, int count, uint32_t base, std::string* out) const {
    uint32_t code = 0;
    if (static_cast<int>(digits.size()) != count) Refuse("an escape in a string is cut short");
    for (char c : digits) {
      if (HexDigit(c) < 0) Refuse("an escape in a string is cut short");
      code = code * base + static_cast<uint32_t>(HexDigit(c));
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
      Refuse("an escape in a string stands for no character");
    }
    AppendCharacter(code, out);
  }

  const std::string text_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> Tokenize(std::string_view source) { return Lexer(Normalized(source)).Run(); }

}  // namespace keel::model::jinja
