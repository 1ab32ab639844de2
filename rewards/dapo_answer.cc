#include "rewards/dapo_answer.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "common/python_space.h"

namespace keel::rewards {

namespace {

constexpr size_t kNone = std::string_view::npos;

// In this order, each everywhere.
constexpr std::pair<std::string_view, std::string_view> kReplaced[] = {
    {"an ", ""},          {"a ", ""},
    {".$", "$"},          {"\\$", ""},
    {"\\ ", ""},          {" ", ""},
    {"mbox", "text"},     {",\\text{and}", ","},
    {"\\text{and}", ","}, {"\\text{m}", "\\text{}"},
};
constexpr std::string_view kRemoved[] = {
    "square",     "ways",       "integers",  "dollars",      "mph",
    "inches",     "hours",      "km",        "units",        "\\ldots",
    "sue",        "points",     "feet",      "minutes",      "digits",
    "cents",      "degrees",    "cm",        "gm",           "pounds",
    "meters",     "meals",      "edges",     "students",     "childrentickets",
    "multiples",  "\\text{s}",  "\\text{.}", "\\text{\ns}",  "\\text{}^2",
    "\\text{}^3", "\\text{\n}", "\\text{}",  "\\mathrm{th}", "^\\circ",
    "^{\\circ}",  "\\;",        ",\\!",      "{,}",          "\"",
    "\\dots",
};

std::string ReplaceAll(std::string_view text, std::string_view before, std::string_view after) {
  std::string made;
  for (size_t at; (at = text.find(before)) != kNone; text.remove_prefix(at + before.size()))
    made.append(text.substr(0, at)).append(after);
  return made.append(text);
}

// Each line through `edit`.
template <class Edit>
std::string ByLine(std::string_view text, const Edit& edit) {
  std::string made;
  while (true) {
    const size_t end = text.find('\n');
    made += edit(text.substr(0, end));
    if (end == kNone) return made;
    made += '\n';
    text.remove_prefix(end + 1);
  }
}

std::string BetweenDollars(std::string_view line) {
  const size_t first = line.find('$');
  const size_t second = first == kNone ? kNone : line.find('$', first + 1);
  return std::string(second == kNone ? line : line.substr(first, second + 1 - first));
}

// `\name{x}` as x: up to the first brace that closes, or to the line's last.
std::string Unwrapped(std::string_view line, std::string_view opening, bool to_the_last) {
  std::string made;
  for (size_t at; (at = line.find(opening)) != kNone;) {
    const std::string_view inner = line.substr(at + opening.size());
    const size_t close = to_the_last ? inner.rfind('}') : inner.find('}');
    if (close == kNone) break;
    made.append(line.substr(0, at)).append(inner.substr(0, close));
    line = inner.substr(close + 1);
  }
  return made.append(line);
}

// The bytes of "answer" where text begins with that in either case, whose s may be a long one, as
// with Python's re.IGNORECASE; else 0.
size_t WordSize(std::string_view text) {
  constexpr std::string_view kWord = "answer", kLong = "\xc5\xbf";
  size_t at = 0;
  for (const char letter : kWord) {
    if (letter == 's' && text.substr(at).starts_with(kLong)) {
      at += kLong.size();
    } else if (at < text.size() && (text[at] | 0x20) == letter) {
      ++at;
    } else {
      return 0;
    }
  }
  return at;
}

// The bytes of the character that text begins with; 0 where it is at its end.
size_t CharacterSize(std::string_view text) {
  size_t size = std::min<size_t>(1, text.size());
  while (size < text.size() && (text[size] & '\xc0') == '\x80') ++size;
  return size;
}

// Behind each `name` the next character in braces, unless it is one that opens; with `two` the
// one behind it, too, or neither where the line ends there.
std::string Braced(std::string_view text, std::string_view name, bool two) {
  std::string made;
  for (size_t at; (at = text.find(name)) != kNone;) {
    made.append(text.substr(0, at + name.size()));
    text.remove_prefix(at + name.size());
    const size_t first = CharacterSize(text);
    const size_t second = two ? CharacterSize(text.substr(first)) : 0;
    if (first == 0 || text.front() == '{' || (two && (second == 0 || text[first] == '\n')))
      continue;
    made.append("{").append(text.substr(0, first)).append("}");
    if (two) made.append("{").append(text.substr(first, second)).append("}");
    text.remove_prefix(first + second);
  }
  return made.append(text);
}

}  // namespace

std::string_view DapoAnswer(std::string_view response) {
  std::string_view answer = kNoDapoAnswer;
  const auto skip_spaces = [&](size_t at) {
    while (const size_t size = PythonSpaceAtBegin(response.substr(at))) at += size;
    return at;
  };
  for (size_t at = 0; at < response.size();) {
    const size_t word = WordSize(response.substr(at));
    const bool here = word > 0;
    const size_t colon = here ? skip_spaces(at + word) : at;
    if (!here || colon == response.size() || response[colon] != ':') {
      ++at;
      continue;
    }
    const size_t begin = skip_spaces(colon + 1);
    // A line of spaces is an answer, too, which is empty.
    const bool spaces = response.substr(colon + 1).find_first_not_of('\n') != kNone;
    if (begin == response.size() && !spaces) break;
    answer = response.substr(begin, response.substr(begin).find('\n'));
    at = begin + answer.size();
  }
  return answer;
}

std::optional<std::string_view> DapoBoxed(std::string_view response) {
  constexpr std::string_view kBox = "\\boxed{";
  const size_t box = response.rfind(kBox);
  if (box == kNone) return std::nullopt;
  const size_t begin = box + kBox.size();
  int open = 1;
  for (size_t at = begin; at < response.size(); ++at) {
    open += (response[at] == '{') - (response[at] == '}');
    if (open == 0) return response.substr(begin, at - begin);
  }
  return std::nullopt;
}

std::string NormalizeDapoAnswer(std::string_view answer) {
  const size_t equals = answer.rfind('=');
  std::string text(answer.substr(equals == kNone ? 0 : equals + 1));
  for (const auto& [before, after] : kReplaced) text = ReplaceAll(text, before, after);
  for (const std::string_view removed : kRemoved) text = ReplaceAll(text, removed, "");
  text = ByLine(text, BetweenDollars);
  for (const std::string_view name : {"\\text{", "\\textbf{", "\\overline{"})
    text = ByLine(text, [&](std::string_view line) { return Unwrapped(line, name, false); });
  text = ByLine(text, [](std::string_view line) { return Unwrapped(line, "\\boxed{", true); });
  text = Braced(text, "frac", true);
  text = Braced(text, "sqrt", false);
  text = ReplaceAll(text, "$", "");
  std::string digits = ReplaceAll(text, ",", "");
  const bool number = !digits.empty() && digits.find_first_not_of("0123456789") == kNone;
  std::string_view stripped = number ? digits : text;
  while (const size_t size = PythonSpaceAtBegin(stripped)) stripped.remove_prefix(size);
  while (const size_t size = PythonSpaceAtEnd(stripped)) stripped.remove_suffix(size);
  return std::string(stripped);
}

}  // namespace keel::rewards
