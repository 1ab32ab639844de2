#include "rewards/math_answer.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "common/text.h"
#include "rewards/latex_text.h"
#include "rewards/rational.h"

namespace keel::rewards {

namespace {

constexpr int kMaxNesting = 8;

std::string Lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// Two numbers that a space parts do not become one.
std::string WithoutSpaces(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ' ') {
      out += text[i];
    } else if (i + 1 < text.size() && IsDigit(text[i + 1]) && !out.empty() && IsDigit(out.back())) {
      out += ' ';
    }
  }
  return out;
}

// "1,234,567.5" and "1 234 567.5" -> "1234567.5", outside brackets, where commas part members.
std::string WithoutThousands(std::string_view text) {
  std::string out;
  int depth = 0;
  for (size_t i = 0; i < text.size();) {
    if (!IsDigit(text[i])) {
      depth += text[i] == '(' || text[i] == '[' || text[i] == '{';
      depth -= text[i] == ')' || text[i] == ']' || text[i] == '}';
      out += text[i++];
      continue;
    }
    size_t end = i;
    while (end < text.size() && IsDigit(text[end])) ++end;
    std::string digits(text.substr(i, end - i));
    if (depth == 0 && digits.size() <= 3 && (i == 0 || text[i - 1] != '.')) {
      const char mark = end < text.size() && text[end] == ' ' ? ' ' : ',';
      // "2 345/678" is a mixed number.
      const std::string_view wrong = mark == ' ' ? "0123456789/" : "0123456789";
      while (end + 3 < text.size() && text[end] == mark && IsDigit(text[end + 1]) &&
             IsDigit(text[end + 2]) && IsDigit(text[end + 3]) &&
             (end + 4 == text.size() || wrong.find(text[end + 4]) == std::string_view::npos)) {
        digits += text.substr(end + 1, 3);
        end += 4;
      }
    }
    out += digits;
    i = end;
  }
  return out;
}

// Of small letters those that are more often a unit than a variable.
constexpr std::array kSingleLetterUnits = {"m", "g", "s", "l", "h", "L",
                                           "K", "N", "J", "W", "V", "A"};
constexpr std::array kAttachedUnits = {"cm", "mm", "km", "kg",  "mg",  "ml", "ft", "in",
                                       "hr", "lb", "oz", "mph", "deg", "m",  "g"};
constexpr std::array kNoUnits = {"pi", "inf", "in", "and", "or", "sqrt", "U"};

template <typename List>
bool Contains(const List& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// Whether every word is a unit by its look: letters, with powers and slashes between.
bool LooksLikeUnits(std::string_view tail) {
  std::string word;
  bool any = false;
  const auto good = [&] {
    if (word.empty()) return true;
    any = true;
    return (word.size() >= 2 || Contains(kSingleLetterUnits, word)) && !Contains(kNoUnits, word);
  };
  for (const char c : tail) {
    if (IsLetter(c)) {
      word += c;
      continue;
    }
    if (!good()) return false;
    word.clear();
    if (std::string_view(" /^.23()-*").find(c) == std::string_view::npos) return false;
  }
  return good() && any;
}

// One spelling of a unit: lower case, no plural, no dots.
std::string UnitName(std::string_view tail) {
  std::string name;
  for (const char c : Lower(tail)) {
    if (c != ' ' && c != '.' && c != '(' && c != ')') name += c;
  }
  if (name.size() > 2 && name.back() == 's') name.pop_back();
  if (name == "degree") name = "deg";
  return name;
}

bool IsNumeral(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), IsDigit);
}

// Of an expression, or of a mixed number as "2 3/4".
std::optional<Rational> ValueOf(std::string_view text) {
  if (const auto value = Evaluate(text)) return value;
  const std::string_view sign = text.substr(0, text.starts_with('-') ? 1 : 0);
  text.remove_prefix(sign.size());
  const size_t space = std::min(text.find(' '), text.size());
  const std::string whole(text.substr(0, space));
  const std::string part(Trim(text.substr(space)));
  const size_t slash = std::min(part.find('/'), part.size());
  if (!IsNumeral(whole) || !IsNumeral(part.substr(0, slash)) || slash == part.size() ||
      !IsNumeral(part.substr(slash + 1)))
    return std::nullopt;
  return Evaluate(std::string(sign) + "(" + whole + "+" + part + ")");
}

struct Answer {
  std::string whole;  // without spaces, with its unit
  std::string text;   // without spaces and dressing
  std::string unit;   // "" when none is given
  bool percent = false;
  std::optional<Rational> value;
};

void SplitUnit(Answer& answer, std::string& text) {
  if (!text.empty() && text.back() == '%') {
    answer.percent = true;
    text = std::string(Trim(std::string_view(text).substr(0, text.size() - 1)));
    return;
  }
  // The first letter that follows a number.
  size_t head = 0;
  for (size_t i = 1; i < text.size(); ++i) {
    if (!IsLetter(text[i])) continue;
    if (IsDigit(text[i - 1]) || text[i - 1] == ' ' || text[i - 1] == ')' || text[i - 1] == '.')
      head = i;
    break;
  }
  if (head == 0) return;
  const std::string_view tail = std::string_view(text).substr(head);
  const std::string_view before = Trim(std::string_view(text).substr(0, head));
  const bool attached = text[head - 1] != ' ';
  if (attached && !Contains(kAttachedUnits, UnitName(tail))) return;
  if (!LooksLikeUnits(tail) || !ValueOf(before)) return;
  const std::string name = UnitName(tail);
  if (name == "percent") {
    answer.percent = true;
  } else {
    answer.unit = name;
  }
  text = std::string(before);
}

Answer Read(std::string_view raw) {
  Answer answer;
  std::string text(Trim(raw));
  if (const auto plain = PlainFromLatex(text)) text = std::string(Trim(*plain));
  while (!text.empty() && (text.back() == '.' || text.back() == ',' || text.back() == ';'))
    text = std::string(Trim(std::string_view(text).substr(0, text.size() - 1)));
  // "x = 5" and "f(x) = 5" name what they answer.
  const size_t equals = text.find('=');
  if (equals != std::string::npos && equals > 0 &&
      text.find('=', equals + 1) == std::string::npos && text[equals - 1] != '<' &&
      text[equals - 1] != '>' && text[equals - 1] != '!') {
    const std::string left = WithoutSpaces(std::string_view(text).substr(0, equals));
    if (left.size() <= 4 && IsLetter(left[0]))
      text = std::string(Trim(std::string_view(text).substr(equals + 1)));
  }
  text = WithoutThousands(text);
  answer.whole = WithoutSpaces(text);
  SplitUnit(answer, text);
  answer.value = ValueOf(text);
  answer.text = WithoutSpaces(text);
  // "(C)" is the choice C.
  if (answer.text.size() == 3 && answer.text[0] == '(' && IsLetter(answer.text[1]) &&
      answer.text[2] == ')') {
    answer.text = answer.text.substr(1, 1);
  }
  const bool words = std::all_of(answer.text.begin(), answer.text.end(), IsLetter);
  if (words && answer.text.size() > 1) answer.text = Lower(answer.text);
  return answer;
}

// Members of "(a, b)", "[a, b)", "{a, b}"; nothing for any other form.
std::optional<std::vector<std::string_view>> Members(std::string_view text) {
  if (text.size() < 3) return std::nullopt;
  const std::string_view inner = text.substr(1, text.size() - 2);
  if (std::string_view("([{").find(text.front()) == std::string_view::npos ||
      std::string_view(")]}").find(text.back()) == std::string_view::npos) {
    return std::nullopt;
  }
  std::vector<std::string_view> members;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= inner.size(); ++i) {
    if (i == inner.size() || (inner[i] == ',' && depth == 0)) {
      members.push_back(inner.substr(begin, i - begin));
      begin = i + 1;
      continue;
    }
    depth += inner[i] == '(' || inner[i] == '[' || inner[i] == '{';
    depth -= inner[i] == ')' || inner[i] == ']' || inner[i] == '}';
    if (depth < 0) return std::nullopt;
  }
  if (members.size() < 2) return std::nullopt;
  return members;
}

bool Same(std::string_view left, std::string_view right, int nesting) {
  const Answer a = Read(left);
  const Answer b = Read(right);
  if (a.text.empty() || b.text.empty()) return false;
  if (a.whole == b.whole) return true;  // "7 h" and "7h", whatever h is
  if (!a.unit.empty() && !b.unit.empty() && a.unit != b.unit) return false;
  if (a.value && b.value) {
    if (*a.value == *b.value) return true;
    if (a.percent == b.percent) return false;
    const Rational& percent = a.percent ? *a.value : *b.value;
    const Rational& plain = a.percent ? *b.value : *a.value;
    return percent.Over(*Rational::Make(100, 1)) == plain;
  }
  if (a.text == b.text) return true;
  if (nesting >= kMaxNesting || a.text.front() != b.text.front() || a.text.back() != b.text.back())
    return false;
  const auto ours = Members(a.text);
  const auto theirs = Members(b.text);
  if (!ours || !theirs || ours->size() != theirs->size()) return false;
  if (a.text.front() != '{') {
    return std::equal(ours->begin(), ours->end(), theirs->begin(),
                      [&](auto x, auto y) { return Same(x, y, nesting + 1); });
  }
  // A set: any order, each member once. Few members, as the text is short.
  if (ours->size() > 32) return false;
  std::vector<bool> used(theirs->size(), false);
  return std::all_of(ours->begin(), ours->end(), [&](std::string_view x) {
    for (size_t i = 0; i < theirs->size(); ++i) {
      if (used[i] || !Same(x, (*theirs)[i], nesting + 1)) continue;
      used[i] = true;
      return true;
    }
    return false;
  });
}

}  // namespace

std::optional<std::string> LastBoxed(std::string_view text) {
  const size_t boxed = text.rfind("\\boxed");
  const size_t fbox = text.rfind("\\fbox");
  size_t at = 0;
  if (boxed != std::string_view::npos && (fbox == std::string_view::npos || boxed > fbox)) {
    at = boxed + 6;
  } else if (fbox != std::string_view::npos) {
    at = fbox + 5;
  } else {
    return std::nullopt;
  }
  const bool spaced = at < text.size() && text[at] == ' ';
  while (at < text.size() && text[at] == ' ') ++at;
  if (at < text.size() && text[at] == '{') {
    const auto end = GroupEnd(text, at);
    if (!end) return std::nullopt;
    return std::string(text.substr(at + 1, *end - at - 2));
  }
  if (!spaced) return std::nullopt;
  const size_t end = std::min(text.find_first_of(" $\n", at), text.size());
  return end > at ? std::optional(std::string(text.substr(at, end - at))) : std::nullopt;
}

std::optional<std::string> LastNumber(std::string_view text) {
  size_t end = text.size();
  while (end > 0 && !IsDigit(text[end - 1])) --end;
  if (end == 0) return std::nullopt;
  size_t begin = end;
  while (begin > 0 &&
         (IsDigit(text[begin - 1]) || ((text[begin - 1] == ',' || text[begin - 1] == '.') &&
                                       begin > 1 && IsDigit(text[begin - 2])))) {
    --begin;
  }
  if (begin > 0 && text[begin - 1] == '.') --begin;  // ".5"
  // A minus, in either spelling, that is no operator: "8-3" ends with 3.
  std::string number;
  for (const std::string_view minus : {"-", "\xE2\x88\x92"}) {
    std::string_view before = text.substr(0, begin);
    if (!before.ends_with(minus)) continue;
    before.remove_suffix(minus.size());
    if (before.empty() ||
        (!IsDigit(before.back()) && !IsLetter(before.back()) && before.back() != ')'))
      number = "-";
  }
  for (const char c : text.substr(begin, end - begin)) {
    if (c != ',') number += c;
  }
  return number;
}

std::string AnswerForm(std::string_view answer) {
  if (answer.size() > kMaxMathAnswer) return "";
  const Answer read = Read(answer);
  if (!read.value) return read.text;
  return read.value->Text() + (read.percent ? "%" : read.unit.empty() ? "" : " " + read.unit);
}

bool SameAnswer(std::string_view a, std::string_view b) {
  if (a.size() > kMaxMathAnswer || b.size() > kMaxMathAnswer) return false;
  return Same(a, b, 0);
}

}  // namespace keel::rewards
