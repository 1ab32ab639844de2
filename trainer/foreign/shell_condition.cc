#include "trainer/foreign/shell_condition.h"

#include <fnmatch.h>

#include <algorithm>
#include <charconv>

namespace keel::trainer::foreign {

namespace {

using Words = std::span<const ShellWord>;

std::optional<int64_t> Integer(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<bool> Compared(const ShellWord& a, const std::string& op, const ShellWord& b,
                             bool patterns) {
  if (op == "==" || op == "=" || op == "!=") {
    const std::optional<bool> same = patterns ? ShellMatch(a, b) : a.text == b.text;
    return same ? std::optional(*same == (op != "!=")) : same;
  }
  const auto left = Integer(a.text), right = Integer(b.text);
  if (!left || !right) return std::nullopt;
  if (op == "-eq") return *left == *right;
  if (op == "-ne") return *left != *right;
  if (op == "-lt") return *left < *right;
  if (op == "-le") return *left <= *right;
  if (op == "-gt") return *left > *right;
  if (op == "-ge") return *left >= *right;
  return std::nullopt;
}

// One test without brackets, && and ||.
std::optional<bool> Plain(Words words, bool patterns) {
  if (!std::all_of(words.begin(), words.end(),
                   [](const ShellWord& w) { return w.not_known.empty(); }))
    return std::nullopt;
  switch (words.size()) {
    case 0:
      return false;
    case 1:
      return !words[0].text.empty();
    case 2:
      if (words[0].text == "-n") return !words[1].text.empty();
      if (words[0].text == "-z") return words[1].text.empty();
      break;
    case 3:
      if (words[0].text != "!") return Compared(words[0], words[1].text, words[2], patterns);
      break;
    default:
      break;
  }
  if (words[0].text != "!" || words.size() > 4) return std::nullopt;
  const std::optional<bool> said = Plain(words.subspan(1), patterns);
  return said ? std::optional(!*said) : said;
}

// Of [[ ... ]]: || of &&. A part that decides needs no other to be known.
std::optional<bool> Joined(Words words, const char* join, bool decides) {
  std::optional<bool> said = !decides;
  while (true) {
    const auto end = std::find_if(words.begin(), words.end(),
                                  [&](const ShellWord& word) { return word.text == join; });
    const Words part = words.first(static_cast<size_t>(end - words.begin()));
    const std::optional<bool> one = decides ? Joined(part, "&&", false) : Plain(part, true);
    if (one == decides) return decides;
    if (!one) said = std::nullopt;
    if (end == words.end()) return said;
    words = words.subspan(part.size() + 1);
  }
}

}  // namespace

std::optional<bool> ShellMatch(const ShellWord& word, const ShellWord& pattern) {
  if (pattern.text == "*") return true;
  if (!word.not_known.empty() || !pattern.not_known.empty()) return std::nullopt;
  if (pattern.quoted_pattern) return std::nullopt;  // which of its signs are patterns, is not kept
  return fnmatch(pattern.text.c_str(), word.text.c_str(), 0) == 0;
}

std::optional<bool> ShellTest(Words words) {
  const std::string& first = words.front().text;
  if (first == "test") return Plain(words.subspan(1), false);
  if (words.size() < 2 || words.back().text != (first == "[" ? "]" : "]]")) return std::nullopt;
  words = words.subspan(1, words.size() - 2);
  if (first == "[") return Plain(words, false);
  for (const char* grouped : {"(", ")", "<", ">"}) {
    if (std::any_of(words.begin(), words.end(),
                    [&](const ShellWord& w) { return w.text == grouped; }))
      return std::nullopt;
  }
  return Joined(words, "||", true);
}

}  // namespace keel::trainer::foreign
