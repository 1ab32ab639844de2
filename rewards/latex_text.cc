#include "rewards/latex_text.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/text.h"

namespace keel::rewards {

namespace {

constexpr int kMaxDepth = 32;

bool AllDigits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), IsDigit);
}

// Commands that stand for plain text.
constexpr std::array<std::pair<std::string_view, std::string_view>, 34> kCommands = {{
    {"cdot", "*"},     {"times", "*"},
    {"ast", "*"},      {"div", "/"},
    {"pi", "pi"},      {"infty", "inf"},
    {"pm", "+-"},      {"circ", "deg"},
    {"degree", "deg"}, {"%", "%"},
    {"{", "{"},        {"}", "}"},
    {"le", "<="},      {"leq", "<="},
    {"ge", ">="},      {"geq", ">="},
    {"ne", "!="},      {"neq", "!="},
    {"cup", "U"},      {"in", " in "},
    {"left", ""},      {"right", ""},
    {"big", ""},       {"Big", ""},
    {"bigg", ""},      {"displaystyle", ""},
    {"quad", " "},     {"qquad", " "},
    {",", ""},         {";", ""},
    {":", ""},         {"!", ""},
    {" ", " "},        {"$", ""},
}};

// Characters beyond ASCII that models like to write.
constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kSymbols = {{
    {"\xE2\x88\x92", "-"},  // minus sign
    {"\xC3\x97", "*"},      // multiplication sign
    {"\xC3\xB7", "/"},      // division sign
    {"\xC2\xB0", "deg"},
    {"\xCF\x80", "pi"},
    {"\xE2\x88\x9E", "inf"},
    {"\xC2\xA0", " "},     // no-break space
    {"\xE2\x82\xAC", ""},  // euro sign
}};

class Converter {
 public:
  explicit Converter(std::string_view text) : text_(text) {}

  std::optional<std::string> Run(int depth) {
    if (depth > kMaxDepth) return std::nullopt;
    depth_ = depth;
    while (at_ < text_.size()) {
      if (!Step()) return std::nullopt;
    }
    return out_;
  }

 private:
  bool Step() {
    const char c = text_[at_];
    if (c == '\\') return Command();
    if (c == '{') {
      // "{,}" is a separator within a number.
      if (text_.substr(at_, 3) == "{,}") {
        out_ += ',';
        at_ += 3;
        return true;
      }
      const auto inner = Argument();
      if (!inner) return false;
      out_ += *inner;
      return true;
    }
    if (c == '}') return false;
    if (c == '^' || c == '_') {
      ++at_;
      const auto inner = Argument();
      if (!inner) return false;
      if (*inner == "deg") {
        out_ += "deg";
      } else {
        out_ += c;
        out_ += inner->size() == 1 ? *inner : "(" + *inner + ")";
      }
      return true;
    }
    for (const auto& [symbol, plain] : kSymbols) {
      if (text_.substr(at_, symbol.size()) == symbol) {
        out_ += plain;
        at_ += symbol.size();
        return true;
      }
    }
    ++at_;
    if (c == '$') return true;
    out_ += c == '~' || c == '\n' || c == '\r' || c == '\t' ? ' ' : c;
    return true;
  }

  bool Command() {
    size_t end = ++at_;
    while (end < text_.size() && IsLetter(text_[end])) ++end;
    if (end == at_ && end < text_.size()) ++end;
    const std::string_view name = text_.substr(at_, end - at_);
    at_ = end;
    if (name == "frac" || name == "dfrac" || name == "tfrac" || name == "cfrac") return Fraction();
    if (name == "sqrt") return Root();
    if (name == "text" || name == "mathrm" || name == "mbox" || name == "textrm" ||
        name == "textbf" || name == "textit" || name == "operatorname") {
      const auto inner = Argument();
      if (!inner) return false;
      // Words after a number are a unit; a space keeps them apart from it.
      if (!out_.empty() && !inner->empty() && inner->front() != ' ') out_ += ' ';
      out_ += *inner;
      return true;
    }
    if (name == "mathbf" || name == "mathbb" || name == "mathcal" || name == "boxed" ||
        name == "fbox") {
      const auto inner = Argument();
      if (!inner) return false;
      out_ += *inner;
      return true;
    }
    // \( \) \[ \] are delimiters of formulas.
    if (name == "(" || name == ")" || name == "[" || name == "]") return true;
    for (const auto& [command, plain] : kCommands) {
      if (name == command) {
        out_ += plain;
        return true;
      }
    }
    out_ += '\\';
    out_ += name;
    return true;
  }

  bool Fraction() {
    const auto above = Argument();
    const auto below = above ? Argument() : std::nullopt;
    if (!below) return false;
    const std::string quotient = "((" + *above + ")/(" + *below + "))";
    size_t whole = out_.size();
    while (whole > 0 && out_[whole - 1] == ' ') --whole;
    size_t digits = whole;
    while (digits > 0 && IsDigit(out_[digits - 1])) --digits;
    const bool decimal = digits > 0 && (out_[digits - 1] == '.' || out_[digits - 1] == ',');
    if (digits < whole && !decimal && AllDigits(*above) && AllDigits(*below)) {
      // 1\frac12 is a mixed number.
      out_ =
          out_.substr(0, digits) + "(" + out_.substr(digits, whole - digits) + "+" + quotient + ")";
    } else {
      out_ += quotient;
    }
    return true;
  }

  bool Root() {
    std::string index;
    if (at_ < text_.size() && text_[at_] == '[') {
      const size_t end = text_.find(']', at_);
      if (end == std::string_view::npos) return false;
      index = std::string(text_.substr(at_, end + 1 - at_));
      at_ = end + 1;
    }
    const auto inner = Argument();
    if (!inner) return false;
    out_ += "sqrt" + index + "(" + *inner + ")";
    return true;
  }

  // A group, a command with its arguments, or one character.
  std::optional<std::string> Argument() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    if (at_ >= text_.size()) return std::nullopt;
    if (text_[at_] == '{') {
      const auto end = GroupEnd(text_, at_);
      if (!end) return std::nullopt;
      const std::string_view inner = text_.substr(at_ + 1, *end - at_ - 2);
      at_ = *end;
      return Converter(inner).Run(depth_ + 1);
    }
    if (text_[at_] == '}') return std::nullopt;
    if (text_[at_] != '\\') return std::string(1, text_[at_++]);
    if (++depth_ > kMaxDepth) return std::nullopt;
    std::string kept = std::exchange(out_, "");
    const bool good = Command();
    std::swap(kept, out_);
    --depth_;
    if (!good) return std::nullopt;
    return kept;
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
  std::string out_;
};

}  // namespace

std::optional<size_t> GroupEnd(std::string_view text, size_t open) {
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;  // \{ and \} are characters
    } else if (text[i] == '{') {
      ++depth;
    } else if (text[i] == '}' && --depth == 0) {
      return i + 1;
    }
  }
  return std::nullopt;
}

std::optional<std::string> PlainFromLatex(std::string_view latex) {
  return Converter(latex).Run(0);
}

}  // namespace keel::rewards
