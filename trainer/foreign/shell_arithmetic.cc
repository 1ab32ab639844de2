#include "trainer/foreign/shell_arithmetic.h"

#include <algorithm>

#include "common/text.h"

namespace keel::trainer::foreign {

namespace {

// One method a level of precedence.
class Arithmetic {
 public:
  Arithmetic(std::string_view text, const NumberOf& lookup) : text_(text), lookup_(lookup) {}
  std::optional<int64_t> Value() {
    const auto value = Sum(0);
    Skip();
    return at_ == text_.size() ? value : std::nullopt;
  }

 private:
  static constexpr int kDeepest = 64;

  void Skip() {
    while (at_ < text_.size() && IsSpace(text_[at_])) ++at_;
  }
  bool Take(char c) {
    Skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::optional<int64_t> Sum(int depth) {
    auto left = Product(depth);
    while (left) {
      const bool plus = Take('+');
      if (!plus && !Take('-')) break;
      const auto right = Product(depth);
      int64_t sum = 0;
      if (!right || (plus ? __builtin_add_overflow(*left, *right, &sum)
                          : __builtin_sub_overflow(*left, *right, &sum)))
        return std::nullopt;
      left = sum;
    }
    return left;
  }
  std::optional<int64_t> Product(int depth) {
    auto left = Factor(depth);
    while (left) {
      Skip();
      const char op = at_ < text_.size() ? text_[at_] : '\0';
      if (op != '*' && op != '/' && op != '%') break;
      ++at_;
      const auto right = Factor(depth);
      int64_t product = 0;
      if (!right || (op != '*' && (*right == 0 || *right == -1)) ||
          (op == '*' && __builtin_mul_overflow(*left, *right, &product)))
        return std::nullopt;
      left = op == '*' ? product : op == '/' ? *left / *right : *left % *right;
    }
    return left;
  }
  std::optional<int64_t> Factor(int depth) {
    if (depth > kDeepest) return std::nullopt;
    if (Take('-')) {
      const auto value = Factor(depth + 1);
      return value ? std::optional<int64_t>(-*value) : std::nullopt;
    }
    if (Take('(')) {
      const auto value = Sum(depth + 1);
      return Take(')') ? value : std::nullopt;
    }
    Skip();
    const size_t begin = at_;
    while (at_ < text_.size() && (IsLetter(text_[at_]) || IsDigit(text_[at_]) || text_[at_] == '_'))
      ++at_;
    const std::string word(text_.substr(begin, at_ - begin));
    if (word.empty()) return std::nullopt;
    if (!IsDigit(word[0])) return lookup_(word);
    const bool octal = word.size() > 1 && word[0] == '0';
    const bool number =
        !octal && word.size() <= 15 && std::all_of(word.begin(), word.end(), IsDigit);
    return number ? std::optional<int64_t>(std::stoll(word)) : std::nullopt;
  }

  std::string_view text_;
  const NumberOf& lookup_;
  size_t at_ = 0;
};

}  // namespace

std::optional<int64_t> ShellArithmetic(std::string_view text, const NumberOf& lookup) {
  return Arithmetic(text, lookup).Value();
}

std::set<std::string> ShellArithmeticSets(std::string_view text) {
  bool sets =
      text.find("++") != std::string_view::npos || text.find("--") != std::string_view::npos;
  std::set<std::string> names;
  std::string name;
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ' ';
    const char before = i > 0 ? text[i - 1] : ' ';
    const bool comparison = before == '=' || before == '!' || before == '<' || before == '>' ||
                            text.substr(std::min(i + 1, text.size()), 1) == "=";
    sets = sets || (c == '=' && !comparison);
    if (IsLetter(c) || c == '_' || (IsDigit(c) && !name.empty())) {
      name += c;
    } else if (!name.empty()) {
      names.insert(std::move(name));
      name.clear();
    }
  }
  return sets ? names : std::set<std::string>();
}

}  // namespace keel::trainer::foreign
