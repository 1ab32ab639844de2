#include "trainer/foreign/shell_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/text.h"
#include "trainer/foreign/shell_arithmetic.h"

namespace keel::trainer::foreign {

namespace {

std::string WhyNotKnown(const ShellVariable& variable) {
  if (!variable.changed.empty())
    return fmt::format("but {}, which may change it", variable.changed);
  return fmt::format("which line {} sets under a condition{}", variable.conditional_line,
                     variable.why.empty() ? "" : " on " + variable.why);
}

// What the programs of these names would print for `words`, which are their arguments; nothing
// where they would refuse them.

std::optional<std::string> BaseName(const std::vector<ShellWord>& words) {
  std::string path = words[0].text;
  if (words.size() > 2 || path.empty() || path[0] == '-') return std::nullopt;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (path != "/") path.erase(0, path.rfind('/') + 1);
  const std::string suffix = words.size() == 2 ? words[1].text : "";
  if (path.size() > suffix.size() && path.ends_with(suffix))
    path.resize(path.size() - suffix.size());
  return path;
}

std::optional<std::string> DirName(std::string path) {
  if (path.starts_with('-')) return std::nullopt;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  path.resize(slash);
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path.empty() ? "/" : path;
}

std::optional<std::string> Expr(const std::vector<ShellWord>& words) {
  constexpr std::string_view kSigns = "+-*/%()";
  std::string text;
  for (const ShellWord& word : words) {
    const bool sign = word.text.size() == 1 && kSigns.find(word.text[0]) != std::string_view::npos;
    const bool number = !word.text.empty() && (word.text[0] != '0' || word.text.size() == 1) &&
                        std::all_of(word.text.begin(), word.text.end(), IsDigit);
    if (!sign && !number) return std::nullopt;  // 7+3 is a text
    text += word.text + " ";
  }
  const auto no_names = [](const std::string&) { return std::optional<int64_t>(); };
  const std::optional<int64_t> value = ShellArithmetic(text, no_names);
  return value ? std::optional(std::to_string(*value)) : std::nullopt;
}

// Of ${@}, ${*} and ${@:3}: how many arguments stand before the first that is meant; nothing of
// any other text within braces.
std::optional<size_t> FirstOfArguments(std::string_view inner) {
  if (!inner.starts_with('@') && !inner.starts_with('*')) return std::nullopt;
  if (inner.size() == 1) return 0;
  const std::string_view number = inner.substr(std::min<size_t>(2, inner.size()));
  if (inner[1] != ':' || number.empty() || number.size() > 4 || number[0] == '0' ||
      !std::all_of(number.begin(), number.end(), IsDigit))
    return std::nullopt;
  return static_cast<size_t>(std::stoul(std::string(number))) - 1;
}

}  // namespace

bool IsInShellName(char c) { return IsLetter(c) || IsDigit(c) || c == '_'; }

bool IsShellName(std::string_view text) {
  return !text.empty() && !IsDigit(text[0]) && std::all_of(text.begin(), text.end(), IsInShellName);
}

ShellWords::ShellWords(std::string_view text, const ShellContext& context)
    : text_(text), context_(context) {
  for (const std::string& argument : context.arguments) arguments_.push_back({argument, {}, 0});
}

char ShellWords::Peek(size_t ahead) const {
  return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
}

void ShellWords::Next() {
  if (text_[at_] == '\n') ++line_;
  ++at_;
}

void ShellWords::SkipBlanks() {
  while (at_ < text_.size()) {
    if (At("\\\n")) {
      Next();
      Next();
    } else if (At("\\\r\n")) {
      at_ += 2;
      Next();
    } else if (Peek() == ' ' || Peek() == '\t' || Peek() == '\r') {
      Next();
    } else {
      return;
    }
  }
}

void ShellWords::SkipLine() {
  while (at_ < text_.size() && Peek() != '\n') Next();
}
std::vector<ShellWord> ShellWords::Word() {
  words_.clear();
  begun_ = false;
  while (at_ < text_.size()) {
    const char c = Peek();
    if (IsSpace(c) || c == ';' || c == '|' || c == '&' || c == '<' || c == '>' || c == '(' ||
        c == ')')
      break;
    if (At("\\\n") || At("\\\r\n")) {  // the word goes on where the next line begins
      at_ += At("\\\n") ? 1 : 2;
      Next();
      continue;
    }
    const size_t word = words_.size() - (begun_ ? 1 : 0);
    const size_t length = begun_ ? Current().text.size() : 0;
    if (c == '\'') {
      SingleQuoted();
      MarkQuoted(word, length);
    } else if (c == '"') {
      DoubleQuoted();
      MarkQuoted(word, length);
    } else if (c == '\\') {
      Next();
      if (at_ < text_.size()) Put(Peek());
      if (at_ < text_.size()) Next();
      MarkQuoted(word, length);
    } else if (c == '$' || c == '`') {
      const bool quote = At("$'") || At("$\"");
      Expansion(false);
      if (quote) MarkQuoted(word, length);
    } else if (c != '{' || !splits_ || !Braces()) {
      Put(c);
      Next();
    }
  }
  return std::move(words_);
}

std::vector<ShellWord> ShellWords::WholeWord() {
  splits_ = false;
  std::vector<ShellWord> words = Word();
  splits_ = true;
  return words;
}

ShellWord& ShellWords::Current() {
  if (!begun_) words_.push_back({"", {}, line_});
  begun_ = true;
  return words_.back();
}

void ShellWords::MarkQuoted(size_t word, size_t length) {
  for (size_t i = word; i < words_.size(); ++i) {
    const size_t found = words_[i].text.find_first_of("*?[", i == word ? length : 0);
    words_[i].quoted_pattern = words_[i].quoted_pattern || found != std::string::npos;
  }
}

void ShellWords::SingleQuoted() {
  const int line = line_;
  Next();
  Current();
  while (at_ < text_.size() && Peek() != '\'') {
    Put(Peek());
    Next();
  }
  if (at_ >= text_.size()) throw ShellUnclosed{line, "a quote (')"};
  Next();
}

void ShellWords::DoubleQuoted() {
  const int line = line_;
  Next();
  // "$@" without arguments is no word at all, nor is "${@:2}" with one.
  const size_t brace = At("${@:") ? text_.find('}', at_) : std::string_view::npos;
  const bool rest = brace != std::string_view::npos && text_.substr(brace).starts_with("}\"");
  if (!At("$@\"") && !At("${@}\"") && !rest) {
    const size_t list = text_.substr(at_).find("[@]}\"");
    const bool array =
        At("${") && list != std::string_view::npos && IsShellName(text_.substr(at_ + 2, list - 2));
    if (!array) Current();
  }
  while (at_ < text_.size() && Peek() != '"') {
    if (Peek() == '\\') {
      const char next = Peek(1);
      Next();
      if (next == '\n') {
        Next();
        continue;
      }
      if (next != '$' && next != '`' && next != '"' && next != '\\') Put('\\');
      if (at_ < text_.size()) Put(next);
      if (at_ < text_.size()) Next();
    } else if (Peek() == '$' || Peek() == '`') {
      Expansion(true);
    } else {
      Put(Peek());
      Next();
    }
  }
  if (at_ >= text_.size()) throw ShellUnclosed{line, "a quote (\")"};
  Next();
}

void ShellWords::CQuoted() {
  const int line = line_;
  const size_t begin = at_;
  Next();
  Current();
  while (at_ < text_.size() && Peek() != '\'') {
    if (Peek() == '\\') {
      Next();
      constexpr std::string_view kEscapes = "ntr\\'\"", kMeant = "\n\t\r\\'\"";
      const size_t escape = at_ < text_.size() ? kEscapes.find(Peek()) : std::string_view::npos;
      if (escape == std::string_view::npos) {
        NotKnown(begin, "an escape that only a shell knows");
      } else {
        Put(kMeant[escape]);
      }
    } else {
      Put(Peek());
    }
    if (at_ < text_.size()) Next();
  }
  if (at_ >= text_.size()) throw ShellUnclosed{line, "a quote (')"};
  Next();
}

bool ShellWords::Braces() {
  int depth = 0;
  bool several = false;
  size_t end = at_;
  for (; end < text_.size(); ++end) {
    const char c = text_[end];
    if (IsSpace(c) || c == '\'' || c == '"') return false;
    if (c == '{') ++depth;
    if (c == '}' && --depth == 0) break;
    several = several || (depth == 1 && (c == ',' || text_.substr(end, 2) == ".."));
  }
  if (end >= text_.size() || !several) return false;
  const size_t begin = at_;
  at_ = end + 1;
  NotKnown(begin, "of which a shell makes several words: it wants quotes");
  return true;
}

std::string ShellWords::Bracketed(char open, char close) {
  const int line = line_;
  const size_t begin = at_ + 1;
  int depth = 0;
  char quote = '\0';
  while (at_ < text_.size()) {
    const char c = Peek();
    if (quote != '\0') {
      if (c == quote) quote = '\0';
    } else if (c == '\'' || (c == '"' && close != '}')) {
      quote = close == '}' ? '\0' : c;
    } else if (c == open) {
      ++depth;
    } else if (c == close && --depth == 0) {
      const std::string inner(text_.substr(begin, at_ - begin));
      Next();
      return inner;
    }
    Next();
  }
  throw ShellUnclosed{line, fmt::format("a bracket ({})", open)};
}

void ShellWords::Expansion(bool quoted) {
  const size_t begin = at_;
  if (Peek() == '`') {
    Next();
    while (at_ < text_.size() && Peek() != '`') Next();
    if (at_ < text_.size()) Next();
    return NotKnown(begin, "which only a shell could run");
  }
  Next();
  if (At("((")) {
    std::string inner = Bracketed('(', ')');
    return Calculate(begin, inner.substr(1, inner.size() - 2));
  }
  if (Peek() == '(') {
    const std::string inner = Bracketed('(', ')');
    if (Trim(inner) == "pwd") return Value(begin, "PWD", quoted);
    return Substitute(begin, inner, quoted);
  }
  if (Peek() == '{') {
    const std::string inner = Bracketed('{', '}');
    return Parameter(begin, inner, quoted);
  }
  if (!quoted && Peek() == '\'') return CQuoted();
  if (!quoted && Peek() == '"') return DoubleQuoted();  // $"...", to be translated
  if (Peek() == '@' || Peek() == '*') {
    const bool joined = Peek() == '*' && (quoted || !splits_);
    Next();
    return PutArguments(begin, 0, quoted, joined);
  }
  size_t end = at_;
  if (IsDigit(Peek())) {
    ++end;
  } else {
    while (end < text_.size() && IsInShellName(text_[end])) ++end;
  }
  if (end == at_) {
    if (Peek() == '#' && arguments_not_known_.empty()) {
      Next();
      Current().text += std::to_string(arguments_.size());
      return;
    }
    if (Peek() == '?' || Peek() == '$' || Peek() == '#' || Peek() == '!') {
      Next();
      return NotKnown(begin, "which only a shell knows");
    }
    return Put('$');
  }
  const std::string name(text_.substr(at_, end - at_));
  at_ = end;
  Value(begin, name, quoted);
}

// An expression with $X, ${X} and $1 as a shell writes them there before it reads it; nothing where
// one of them is not known to be a number, or is more than a name.
std::optional<std::string> ShellWords::WithNumbers(
    const std::string& inner,
    const std::function<std::optional<int64_t>(const std::string&)>& lookup) const {
  std::string out;
  for (size_t at = 0; at < inner.size();) {
    if (inner[at] != '$') {
      out += inner[at++];
      continue;
    }
    const bool braced = inner.substr(at + 1, 1) == "{";
    size_t end = at + 1 + (braced ? 1 : 0);
    const size_t first = end;
    const bool digit = end < inner.size() && IsDigit(inner[end]);
    while (end < inner.size() && IsInShellName(inner[end]) && (braced || !digit || end == first))
      ++end;
    const std::string name = inner.substr(first, end - first);
    if (name.empty() || (braced && inner.substr(end, 1) != "}")) return std::nullopt;
    const std::optional<int64_t> number = lookup(name);
    if (!number) return std::nullopt;
    out += std::to_string(*number);
    at = end + (braced ? 1 : 0);
  }
  return out;
}

void ShellWords::Calculate(size_t begin, const std::string& inner) {
  const auto lookup = [&](const std::string& name) -> std::optional<int64_t> {
    const std::optional<ShellWord> word = Find(name);
    if (!word || !word->not_known.empty() || word->text.empty() || word->text.size() > 15)
      return std::nullopt;
    const std::string_view digits = std::string_view(word->text).substr(word->text[0] == '-');
    const bool octal = digits.size() > 1 && digits[0] == '0';
    if (digits.empty() || octal || !std::all_of(digits.begin(), digits.end(), IsDigit))
      return std::nullopt;
    return std::stoll(word->text);
  };
  const std::optional<std::string> plain = WithNumbers(inner, lookup);
  for (const std::string& name : ShellArithmeticSets(plain ? *plain : inner))
    variables_[name].conditional_line = line_;
  const auto value = plain ? ShellArithmetic(*plain, lookup) : std::nullopt;
  if (!value) return NotKnown(begin, "whose parts are not all known numbers");
  Current().text += std::to_string(*value);
}

void ShellWords::Substitute(size_t begin, const std::string& inner, bool quoted) {
  bool bare = true;
  std::vector<ShellWord> words = WordsWithin(inner, &bare);
  const bool known = bare && std::all_of(words.begin(), words.end(), [](const ShellWord& word) {
                       return word.not_known.empty();
                     });
  std::optional<std::string> answer;
  if (known && words.size() > 1) {
    const std::string program = words[0].text;
    words.erase(words.begin());
    if (program == "basename") answer = BaseName(words);
    if (program == "dirname" && words.size() == 1) answer = DirName(words[0].text);
    if (program == "expr") answer = Expr(words);
  }
  if (!answer) return NotKnown(begin, "which only a shell could run");
  if (!quoted && splits_) return PutSplit(*answer);
  Current().text += *answer;
}

void ShellWords::Parameter(size_t begin, const std::string& inner, bool quoted) {
  size_t end = 0;
  while (end < inner.size() && IsInShellName(inner[end])) ++end;
  if (const std::optional<size_t> first = FirstOfArguments(inner))
    return PutArguments(begin, *first, quoted, inner[0] == '*' && (quoted || !splits_));
  const std::string name = inner.substr(0, end);
  std::string rest = inner.substr(end);
  if (name.empty()) return NotKnown(begin, "which only a shell could work out");
  if (rest.empty()) return Value(begin, name, quoted);
  const auto found = variables_.find(name);
  if (rest == "[@]" || rest == "[*]") {
    if (found == variables_.end()) return NotSet(begin);
    if (found->second.conditional_line > 0) return NotKnown(begin, WhyNotKnown(found->second));
    return PutWords(found->second.words, quoted, rest == "[*]" && (quoted || !splits_));
  }
  const bool colon = rest[0] == ':';
  if (colon) rest.erase(0, 1);
  const char op = rest.empty() ? '\0' : rest[0];
  if (op != '-' && op != '=' && op != '+' && op != '?')
    return NotKnown(begin, "which only a shell could work out");
  const std::optional<ShellWord> word = Find(name);
  if (!word && !outside_.empty()) return NotSet(begin);  // or set, by what is not read here
  const bool set = word && !(colon && word->text.empty() && word->not_known.empty());
  if (op == '+') {
    if (set) PutText(rest.substr(1), quoted);
  } else if (set) {
    Value(begin, name, quoted);
  } else if (op == '?') {
    NotSet(begin);
  } else {
    const size_t known = begun_ ? Current().not_known.size() : 0;
    const size_t length = begun_ && op == '=' ? Current().text.size() : 0;
    PutText(rest.substr(1), quoted || op == '=');
    if (op == '=') {
      ShellWord chosen{"", {}, line_};
      if (begun_) {
        chosen.text = Current().text.substr(length);
        chosen.not_known.assign(Current().not_known.begin() + static_cast<int64_t>(known),
                                Current().not_known.end());
      }
      defaults_.emplace_back(name, std::move(chosen));
    }
    if (begun_ && Current().not_known.size() > known)
      Current().not_known.back() += fmt::format(" (set {} in the environment)", name);
  }
}

std::vector<ShellWord> ShellWords::WordsWithin(const std::string& text, bool* bare) {
  ShellWords inner(text, context_);
  inner.variables_ = variables_;
  inner.arguments_ = arguments_;
  inner.arguments_not_known_ = arguments_not_known_;
  inner.outside_ = outside_;
  inner.line_ = line_;
  inner.nested_ = nested_ + 1;
  if (nested_ > 32) throw ShellUnclosed{line_, "expansions within expansions, too deep,"};
  std::vector<ShellWord> words;
  *bare = true;
  while (inner.at_ < text.size()) {
    const size_t before = inner.at_;
    for (ShellWord& word : inner.Word()) words.push_back(std::move(word));
    inner.SkipBlanks();
    if (inner.at_ == before && inner.at_ < text.size()) {
      words.push_back({std::string(1, text[inner.at_]), {}, line_});
      *bare = false;
      inner.Next();
    }
  }
  from_environment_.merge(inner.from_environment_);
  return words;
}

void ShellWords::PutText(const std::string& text, bool quoted) {
  bool bare = true;
  const std::vector<ShellWord> words = WordsWithin(text, &bare);
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0 && (quoted || !splits_)) Put(' ');
    if (i > 0 && !quoted && splits_) begun_ = false;
    PutWord(words[i]);
  }
}

std::optional<ShellWord> ShellWords::Find(const std::string& name) {
  if (IsDigit(name[0])) {
    if (!arguments_not_known_.empty())
      return ShellWord{"$" + name, {fmt::format("${}, {}", name, arguments_not_known_)}, line_};
    const size_t number = static_cast<size_t>(std::stol(name.substr(0, 6)));
    if (number == 0 || number > arguments_.size()) return std::nullopt;
    return arguments_[number - 1];
  }
  const auto found = variables_.find(name);
  if (found != variables_.end()) {
    const ShellVariable& variable = found->second;
    ShellWord word = variable.words.empty() ? ShellWord{"", {}, line_} : variable.words[0];
    if (variable.conditional_line > 0)
      word.not_known.push_back(fmt::format("${}, {}", name, WhyNotKnown(variable)));
    return word;
  }
  if (name == "IFS") return ShellWord{" \t\n", {}, line_};  // whatever the environment has
  std::optional<std::string> value = context_.environment(name);
  if (!value) return std::nullopt;
  from_environment_.insert(name);
  return ShellWord{std::move(*value), {}, line_};
}

void ShellWords::Value(size_t begin, const std::string& name, bool quoted) {
  const std::optional<ShellWord> word = Find(name);
  if (!word)
    return IsDigit(name[0]) ? NotKnown(begin, "an argument of the script, which was not given")
                            : NotSet(begin);
  if (!word->not_known.empty()) {
    ShellWord as_written = *word;
    const auto found = variables_.find(name);
    if (found != variables_.end() && found->second.conditional_line > 0)
      as_written.text = std::string(text_.substr(begin, at_ - begin));
    return PutWord(as_written);
  }
  if (quoted || !splits_) return PutWord(*word);
  PutSplit(word->text);
}

std::optional<std::string> ShellWords::Separators() const {
  const auto found = variables_.find("IFS");
  if (found == variables_.end()) return " \t\n";
  const ShellVariable& ifs = found->second;
  if (ifs.conditional_line > 0 || ifs.words.size() != 1 || !ifs.words[0].not_known.empty())
    return std::nullopt;
  return ifs.words[0].text;
}

void ShellWords::PutSplit(const std::string& text) {
  const std::optional<std::string> separators = Separators();
  if (!separators) {
    Current().text += text;
    return Current().not_known.push_back(
        fmt::format("{}, of which a shell makes words by $IFS", Printable(text, 60)));
  }
  const auto separates = [&](char c) { return separators->find(c) != std::string::npos; };
  const auto blank = [&](char c) { return separates(c) && (c == ' ' || c == '\t' || c == '\n'); };
  size_t at = 0;
  const auto skip_blanks = [&] {
    while (at < text.size() && blank(text[at])) ++at;
  };
  if (!text.empty() && blank(text[0])) begun_ = false;
  skip_blanks();
  while (at < text.size()) {
    size_t end = at;
    while (end < text.size() && !separates(text[end])) ++end;
    Current().text += text.substr(at, end - at);
    at = end;
    if (at == text.size()) return;
    begun_ = false;
    skip_blanks();
    if (at < text.size() && separates(text[at])) ++at;  // blanks beside another are part of it
    skip_blanks();
  }
}

void ShellWords::PutWord(const ShellWord& word) {
  ShellWord& current = Current();
  current.text += word.text;
  current.not_known.insert(current.not_known.end(), word.not_known.begin(), word.not_known.end());
}

void ShellWords::PutArguments(size_t begin, size_t first, bool quoted, bool joined) {
  if (!arguments_not_known_.empty()) return NotKnown(begin, arguments_not_known_);
  const auto from = arguments_.begin() + static_cast<int64_t>(std::min(first, arguments_.size()));
  PutWords({from, arguments_.end()}, quoted, joined);
}

void ShellWords::PutWords(const std::vector<ShellWord>& words, bool quoted, bool joined) {
  const std::optional<std::string> separators = joined ? Separators() : " ";
  joined = joined || !splits_;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0 && joined && separators) Current().text += separators->substr(0, 1);
    if (i > 0 && joined && !separators)
      Current().not_known.emplace_back("a list that a shell joins by $IFS");
    if (i > 0 && !joined) begun_ = false;
    if (quoted || !splits_ || !words[i].not_known.empty()) {
      PutWord(words[i]);
    } else {
      PutSplit(words[i].text);
    }
  }
}

void ShellWords::NotKnown(size_t begin, const std::string& why) {
  const std::string text(text_.substr(begin, at_ - begin));
  Current().text += text;
  Current().not_known.push_back(fmt::format("{}, {}", Printable(text, 60), why));
}

void ShellWords::NotSet(size_t begin) {
  NotKnown(begin, outside_.empty() ? "which is set neither in the script nor in the environment"
                                   : fmt::format("which the script does not set ({})", outside_));
}

}  // namespace keel::trainer::foreign
