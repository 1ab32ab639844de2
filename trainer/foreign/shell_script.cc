#include "trainer/foreign/shell_script.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "common/text.h"
#include "trainer/foreign/shell_arithmetic.h"
#include "trainer/foreign/shell_condition.h"

namespace keel::trainer::foreign {

namespace {

bool InName(char c) { return IsLetter(c) || IsDigit(c) || c == '_'; }

bool IsName(std::string_view text) {
  return !text.empty() && !IsDigit(text[0]) && std::all_of(text.begin(), text.end(), InName);
}

struct Variable {
  std::vector<ShellWord> words;  // one; of an array, each element
  bool array = false;
  int conditional_line = 0;  // set there under a condition: which value it has is not known
  std::string why;           // what is not known of the condition
};

// Whether something is done.
enum class Done { kNo, kMaybe, kYes };
Done Not(Done done) { return static_cast<Done>(2 - static_cast<int>(done)); }

// How a command ended: what is done behind its && and behind its ||. One that is no test is taken
// to do its work.
struct Outcome {
  Done then = Done::kYes;
  Done otherwise = Done::kMaybe;
  // As a condition of `if`.
  Done Truth() const { return otherwise == Not(then) ? then : Done::kMaybe; }
};
Outcome Said(std::optional<bool> said) {
  const Done then = !said ? Done::kMaybe : *said ? Done::kYes : Done::kNo;
  return {then, Not(then)};
}

// An if, case, loop, function or { that is open.
struct Block {
  std::string kind;
  Done around = Done::kYes;  // whether the block is reached
  Done runs = Done::kYes;    // whether its branch that is being read is done
  Done earlier = Done::kNo;  // whether a branch before it was
  Done guard = Done::kYes;   // by the && or || before it
  Outcome before = {};       // how the command before it ended
  ShellWord subject = {};    // of case
  bool patterns = false;     // of case: a branch's patterns are next
  std::string why = {};      // what is not known of the branch's condition
};

struct Unclosed {
  int line;
  std::string what;
};

class Reader {
 public:
  Reader(std::string_view text, const ShellContext& context) : text_(text), context_(context) {
    for (const std::string& argument : context.arguments) arguments_.push_back({argument, {}, 0});
  }

  ShellScript Read() {
    while (at_ < text_.size()) Command();
    return std::move(script_);
  }

 private:
  char Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool At(std::string_view what) const { return text_.substr(at_, what.size()) == what; }
  void Next() {
    if (text_[at_] == '\n') ++line_;
    ++at_;
  }
  // Blanks and continued lines.
  void SkipBlanks() {
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
  void SkipLine() {
    while (at_ < text_.size() && Peek() != '\n') Next();
  }

  // 1. The words up to an end of a command. 2. What they assign. 3. What is left is a command.
  void Command() {
    SkipBlanks();
    if (at_ >= text_.size()) return;
    const char c = Peek();
    if (c == '#') return SkipLine();
    if (c == '\n') {
      Next();
      SkipHereDocuments();
      return;
    }
    if (!blocks_.empty() && blocks_.back().patterns) return Patterns();
    if (At("&&") || At("||")) {
      guard_ = c == '&' ? outcome_.then : outcome_.otherwise;
      Next();
      return Next();
    }
    if (At(";;") && !blocks_.empty() && blocks_.back().kind == "case") {
      blocks_.back().patterns = true;
      Next();
      return Next();
    }
    if (c == ';' || c == '&' || c == '|' || c == '(' || c == ')') {
      if (c == '|') guard_ = last_guard_;
      if (c == ')') outcome_ = Said(std::nullopt);  // of ((...))
      bracketed_ = c == ')';
      return Next();
    }
    ShellCommand command;
    command.line = line_;
    bool declaring = false;
    bool assigns = false;
    assigned_ = true;
    while (true) {
      SkipBlanks();
      const char next = Peek();
      if (!command.words.empty() && command.words[0].text == "[[" && TestWord(&command)) continue;
      if (at_ >= text_.size() || next == '\n' || next == ';' || next == '|' || next == ')' ||
          next == '(')
        break;
      if (next == '&' && Peek(1) != '>') break;
      if (next == '#') {
        SkipLine();
        break;
      }
      if (next == '<' || next == '>' || next == '&') {
        Redirection();
        continue;
      }
      if ((command.words.empty() || declaring) && Assignment()) {
        assigns = true;
        continue;
      }
      const size_t before = at_;
      std::vector<ShellWord> words = Word();
      if (words.size() == 1 && (Peek() == '<' || Peek() == '>') &&
          std::all_of(words[0].text.begin(), words[0].text.end(), IsDigit))
        continue;  // 2>
      if (command.words.empty() && words.size() == 1) {
        const std::string& word = words[0].text;
        if (Reserved(word)) {
          if (word == "case" || word == "}" || word == "fi" || word == "done" || word == "esac")
            return;
          continue;
        }
        declaring = word == "export" || word == "readonly" || word == "local" ||
                    word == "declare" || word == "typeset";
      }
      if (at_ == before) Next();
      for (ShellWord& word : words) command.words.push_back(std::move(word));
    }
    bracketed_ = false;
    if (!command.words.empty() || assigns) Ended(OutcomeOf(command));
    if (!command.words.empty()) Finish(std::move(command));
    last_guard_ = guard_;
    guard_ = Done::kYes;
  }

  // A word of [[ ... ]], where operators are words, too; false where it has ended.
  bool TestWord(ShellCommand* command) {
    if (at_ >= text_.size() || command->words.back().text == "]]") return false;
    if (Peek() == '\n') {
      Next();
      return true;
    }
    splits_ = false;
    const size_t before = at_;
    std::vector<ShellWord> words = Word();
    splits_ = true;
    for (ShellWord& word : words) command->words.push_back(std::move(word));
    if (at_ != before) return true;
    const size_t length = At("&&") || At("||") ? 2 : 1;
    command->words.push_back({std::string(text_.substr(at_, length)), {}, line_});
    for (size_t i = 0; i < length; ++i) Next();
    return true;
  }

  // "WORD in": the branches follow.
  void Case() {
    SkipBlanks();
    splits_ = false;
    std::vector<ShellWord> words = Word();
    splits_ = true;
    blocks_.back().subject = words.empty() ? ShellWord{"", {}, line_} : std::move(words[0]);
    while (IsSpace(Peek()) || At("\\\n")) Next();
    blocks_.back().patterns = At("in");
    if (blocks_.back().patterns) at_ += 2;
  }
  // "a | b)" or "esac".
  void Patterns() {
    Block& block = blocks_.back();
    if (Peek() == '(') Next();
    Done matches = Done::kNo;
    while (true) {
      SkipBlanks();
      splits_ = false;
      std::vector<ShellWord> words = Word();
      splits_ = true;
      if (words.size() == 1 && words[0].text == "esac" && Peek() != ')') return Close();
      if (words.empty()) words.push_back({"", {}, line_});
      matches = std::max(matches, Said(ShellMatch(block.subject, words[0])).then);
      if (matches == Done::kMaybe) Because(block.subject);
      SkipBlanks();
      if (Peek() != '|') break;
      Next();
    }
    if (Peek() == ')') Next();
    block.patterns = false;
    Branch(matches);
  }

  // What a branch is done for: its own condition, if none before it was done.
  void Branch(Done condition) {
    Block& block = blocks_.back();
    const Done reached = Not(block.earlier);
    block.runs = std::min({block.around, reached, condition});
    block.earlier = std::max(block.earlier, condition);
    if (condition != Done::kYes) block.why = why_;
  }
  void Open(std::string kind, Done runs = Done::kYes) {
    const Done around = std::min(blocks_.empty() ? Done::kYes : blocks_.back().runs, guard_);
    blocks_.push_back(
        {std::move(kind), around, std::min(around, runs), Done::kNo, guard_, outcome_});
    guard_ = Done::kYes;
  }
  void Close() {
    if (blocks_.empty()) return;
    const Block block = std::move(blocks_.back());
    blocks_.pop_back();
    const Outcome inner = block.kind == "{" ? outcome_ : Outcome();
    outcome_ = block.before;
    guard_ = block.guard;
    Ended(inner);
    guard_ = Done::kYes;
  }

  // Whether what is being read is done.
  Done Runs() const { return std::min(guard_, blocks_.empty() ? Done::kYes : blocks_.back().runs); }
  // What is not known of the innermost condition.
  std::string Why() const {
    if (guard_ == Done::kMaybe) return why_;
    for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
      if (!block->why.empty()) return block->why;
    }
    return "";
  }
  void Because(const ShellWord& word) {
    if (!word.not_known.empty()) why_ = word.not_known.front();
  }

  // One command of a list has ended, if it was done.
  void Ended(Outcome outcome) {
    if (negated_) std::swap(outcome.then, outcome.otherwise);
    if (negated_ && outcome.Truth() == Done::kMaybe) outcome = Said(std::nullopt);
    negated_ = false;
    if (guard_ == Done::kYes) outcome_ = outcome;
    if (guard_ != Done::kMaybe) return;
    if (outcome.then != outcome_.then) outcome_.then = Done::kMaybe;
    if (outcome.otherwise != outcome_.otherwise) outcome_.otherwise = Done::kMaybe;
  }
  Outcome OutcomeOf(const ShellCommand& command) {
    if (command.words.empty()) return assigned_ ? Said(true) : Outcome();
    const std::string& name = command.words[0].text;
    if (name == "true" || name == ":") return Said(true);
    if (name == "false") return Said(false);
    if (name != "[" && name != "[[" && name != "test") return {};
    const std::optional<bool> said = ShellTest(command.words);
    for (const ShellWord& word : command.words) {
      if (!said) Because(word);
    }
    return Said(said);
  }

  void Finish(ShellCommand command) {
    const std::string& name = command.words[0].text;
    const Done runs = Runs();
    if (name == "for") Open("for", Done::kMaybe);
    if (runs == Done::kNo) return;
    if (name == "for" || name == "read" || name == "mapfile" || name == "unset") {
      for (size_t i = 1; i < command.words.size(); ++i) {
        if (IsName(command.words[i].text))
          variables_[command.words[i].text].conditional_line = line_;
        if (name == "for") break;
      }
    } else if (name == "shift" && runs == Done::kYes) {
      const size_t count = command.words.size() > 1 && command.words[1].text.size() == 1
                               ? static_cast<size_t>(command.words[1].text[0] - '0')
                               : 1;
      arguments_.erase(arguments_.begin(), arguments_.begin() + static_cast<int64_t>(std::min(
                                                                    count, arguments_.size())));
    } else if (name == "source" || name == "." || name == "eval") {
      outside_ = fmt::format("line {} runs \"{}\", which may set it", command.line, name);
    }
    script_.commands.push_back(std::move(command));
  }

  // Whether a word at the start of a command is the shell's own, after which a command begins.
  bool Reserved(const std::string& word) {
    if (word == "if" || word == "while" || word == "until") {
      why_.clear();
      Open(word, word == "if" ? Done::kYes : Done::kMaybe);
    } else if (word == "{") {
      Open(word, bracketed_ ? Done::kMaybe : Done::kYes);  // f() {
    } else if (word == "case") {
      Open(word);
      Case();
    } else if (word == "fi" || word == "done" || word == "esac" || word == "}") {
      Close();
    } else if (word == "then" || word == "else" || word == "elif") {
      if (blocks_.empty() || blocks_.back().kind != "if") return true;
      if (word == "then") {
        Branch(outcome_.Truth());
      } else if (word == "else") {
        Branch(Done::kYes);
      } else {
        Block& block = blocks_.back();
        block.runs = std::min(block.around, Not(block.earlier));
      }
    } else if (word == "!") {
      negated_ = true;
    } else {
      if (word == "function") {
        SkipBlanks();
        Word();
        bracketed_ = true;
      }
      return word == "do" || word == "time" || word == "function";
    }
    return true;
  }

  void Redirection() {
    if (At("<<") && !At("<<<")) {
      at_ += 2;
      const bool tabs = Peek() == '-';
      if (tabs) Next();
      SkipBlanks();
      const std::vector<ShellWord> delimiter = Word();
      if (!delimiter.empty()) here_documents_.push_back({delimiter[0].text, tabs});
      return;
    }
    while (Peek() == '<' || Peek() == '>' || Peek() == '&' || Peek() == '|') Next();
    SkipBlanks();
    if (Peek() != '\n' && at_ < text_.size()) Word();
  }
  void SkipHereDocuments() {
    for (const auto& [delimiter, tabs] : here_documents_) {
      while (at_ < text_.size()) {
        const size_t end = std::min(text_.find('\n', at_), text_.size());
        std::string_view row = text_.substr(at_, end - at_);
        while (tabs && row.starts_with('\t')) row.remove_prefix(1);
        const bool last = row == delimiter;
        SkipLine();
        if (at_ < text_.size()) Next();
        if (last) break;
      }
    }
    here_documents_.clear();
  }

  // NAME=value, NAME+=value, NAME=(words).
  bool Assignment() {
    size_t end = at_;
    while (end < text_.size() && InName(text_[end])) ++end;
    const std::string name(text_.substr(at_, end - at_));
    const bool append = text_.substr(end, 2) == "+=";
    if (!IsName(name) || (!append && text_.substr(end, 1) != "=")) return false;
    at_ = end + (append ? 2 : 1);
    Variable value;
    if (Peek() == '(') {
      const int line = line_;
      Next();
      value.array = true;
      while (true) {
        while (IsSpace(Peek()) || At("\\\n") || At("\\\r\n"))
          Peek() == '\n' ? Next() : SkipBlanks();
        if (at_ >= text_.size()) throw Unclosed{line, "the list of " + name};
        if (Peek() == ')') break;
        if (Peek() == '#') {
          SkipLine();
          continue;
        }
        const size_t before = at_;
        for (ShellWord& word : Word()) value.words.push_back(std::move(word));
        if (at_ == before) Next();
      }
      Next();
    } else {
      splits_ = false;
      value.words = Word();
      splits_ = true;
      if (value.words.empty()) value.words.push_back({"", {}, line_});
      assigned_ = assigned_ && value.words[0].not_known.empty();
    }
    if (Runs() == Done::kNo) return true;
    Variable& variable = variables_[name];
    if (append && value.array) {
      for (ShellWord& word : value.words) variable.words.push_back(std::move(word));
      variable.array = true;
    } else if (append) {
      if (variable.words.empty()) variable.words.push_back({"", {}, line_});
      ShellWord& word = variable.words[0];
      word.text += value.words[0].text;
      for (std::string& why : value.words[0].not_known) word.not_known.push_back(std::move(why));
    } else {
      variable = std::move(value);
    }
    if (Runs() == Done::kMaybe) {
      variable.conditional_line = line_;
      variable.why = Why();
    }
    return true;
  }

  // The words that one word of the script becomes: none, where it is an empty variable; several,
  // where it is a list.
  std::vector<ShellWord> Word() {
    words_.clear();
    begun_ = false;
    while (at_ < text_.size()) {
      const char c = Peek();
      if (IsSpace(c) || c == ';' || c == '|' || c == '&' || c == '<' || c == '>' || c == '(' ||
          c == ')')
        break;
      if (At("\\\n") || At("\\\r\n")) break;
      if (c == '\'') {
        SingleQuoted();
      } else if (c == '"') {
        DoubleQuoted();
      } else if (c == '\\') {
        Next();
        if (at_ < text_.size()) Put(Peek());
        if (at_ < text_.size()) Next();
      } else if (c == '$' || c == '`') {
        Expansion(false);
      } else {
        Put(c);
        Next();
      }
    }
    return std::move(words_);
  }
  ShellWord& Current() {
    if (!begun_) words_.push_back({"", {}, line_});
    begun_ = true;
    return words_.back();
  }
  void Put(char c) { Current().text += c; }

  void SingleQuoted() {
    const int line = line_;
    Next();
    Current();
    while (at_ < text_.size() && Peek() != '\'') {
      Put(Peek());
      Next();
    }
    if (at_ >= text_.size()) throw Unclosed{line, "a quote (')"};
    Next();
  }
  void DoubleQuoted() {
    const int line = line_;
    Next();
    // "$@" without arguments is no word at all.
    if (!At("$@\"") && !At("${@}\"")) {
      const size_t list = text_.substr(at_).find("[@]}\"");
      const bool array =
          At("${") && list != std::string_view::npos && IsName(text_.substr(at_ + 2, list - 2));
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
    if (at_ >= text_.size()) throw Unclosed{line, "a quote (\")"};
    Next();
  }

  // The text between the bracket at `at_` and the one that closes it.
  std::string Bracketed(char open, char close) {
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
    throw Unclosed{line, fmt::format("a bracket ({})", open)};
  }

  // $X, ${X...}, $((...)), $(...), `...` at `at_`.
  void Expansion(bool quoted) {
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
      return NotKnown(begin, "which only a shell could run");
    }
    if (Peek() == '{') {
      const std::string inner = Bracketed('{', '}');
      return Parameter(begin, inner, quoted);
    }
    if (Peek() == '@' || Peek() == '*') {
      Next();
      return PutWords(arguments_, quoted);
    }
    size_t end = at_;
    if (IsDigit(Peek())) {
      ++end;
    } else {
      while (end < text_.size() && InName(text_[end])) ++end;
    }
    if (end == at_) {
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

  void Calculate(size_t begin, const std::string& inner) {
    std::string plain;  // $X and ${X} are X here
    for (const char c : inner) {
      if (c != '$' && c != '{' && c != '}') plain += c;
    }
    const auto lookup = [&](const std::string& name) -> std::optional<int64_t> {
      const std::optional<ShellWord> word = Find(name);
      if (!word || !word->not_known.empty() || word->text.empty() || word->text.size() > 15)
        return std::nullopt;
      const std::string_view digits = std::string_view(word->text).substr(word->text[0] == '-');
      if (digits.empty() || !std::all_of(digits.begin(), digits.end(), IsDigit))
        return std::nullopt;
      return std::stoll(word->text);
    };
    const auto value = ShellArithmetic(plain, lookup);
    if (!value) return NotKnown(begin, "whose parts are not all known numbers");
    Current().text += std::to_string(*value);
  }

  // ${NAME}, ${NAME[@]}, ${NAME:-default} and their like.
  void Parameter(size_t begin, const std::string& inner, bool quoted) {
    size_t end = 0;
    while (end < inner.size() && InName(inner[end])) ++end;
    if (end == 0 && (inner == "@" || inner == "*")) return PutWords(arguments_, quoted);
    const std::string name = inner.substr(0, end);
    std::string rest = inner.substr(end);
    if (name.empty()) return NotKnown(begin, "which only a shell could work out");
    if (rest.empty()) return Value(begin, name, quoted);
    const auto found = variables_.find(name);
    if (rest == "[@]" || rest == "[*]") {
      if (found == variables_.end()) return NotSet(begin);
      if (found->second.conditional_line > 0) return Conditional(begin, name);
      return PutWords(found->second.words, quoted);
    }
    const bool colon = rest[0] == ':';
    if (colon) rest.erase(0, 1);
    const char op = rest.empty() ? '\0' : rest[0];
    if (op != '-' && op != '=' && op != '+' && op != '?')
      return NotKnown(begin, "which only a shell could work out");
    const std::optional<ShellWord> word = Find(name);
    const bool set = word && !(colon && word->text.empty() && word->not_known.empty());
    if (op == '+') {
      if (set) PutText(rest.substr(1), quoted);
    } else if (set) {
      Value(begin, name, quoted);
    } else if (op == '?') {
      NotSet(begin);
    } else {
      const size_t known = begun_ ? Current().not_known.size() : 0;
      PutText(rest.substr(1), quoted);
      if (begun_ && Current().not_known.size() > known)
        Current().not_known.back() += fmt::format(" (set {} in the environment)", name);
    }
  }

  // A default, which may have expansions of its own.
  void PutText(const std::string& text, bool quoted) {
    Reader inner(text, context_);
    inner.variables_ = variables_;
    inner.arguments_ = arguments_;
    inner.line_ = line_;
    inner.nested_ = nested_ + 1;
    if (nested_ > 32) throw Unclosed{line_, "defaults within defaults, too deep,"};
    std::vector<ShellWord> words;
    while (inner.at_ < text.size()) {
      const size_t before = inner.at_;
      for (ShellWord& word : inner.Word()) words.push_back(std::move(word));
      inner.SkipBlanks();
      if (inner.at_ == before && inner.at_ < text.size()) {
        words.push_back({std::string(1, text[inner.at_]), {}, line_});
        inner.Next();
      }
    }
    script_.from_environment.merge(inner.script_.from_environment);
    for (size_t i = 0; i < words.size(); ++i) {
      if (i > 0 && (quoted || !splits_)) Put(' ');
      if (i > 0 && !quoted && splits_) begun_ = false;
      PutWord(words[i]);
    }
  }

  // The variable's value; nothing where it has none.
  std::optional<ShellWord> Find(const std::string& name) {
    if (IsDigit(name[0])) {
      const size_t number = static_cast<size_t>(std::stol(name.substr(0, 6)));
      if (number == 0 || number > arguments_.size()) return std::nullopt;
      return arguments_[number - 1];
    }
    const auto found = variables_.find(name);
    if (found != variables_.end()) {
      const Variable& variable = found->second;
      ShellWord word = variable.words.empty() ? ShellWord{"", {}, line_} : variable.words[0];
      if (variable.conditional_line > 0)
        word.not_known.push_back(Conditioned("$" + name, variable));
      return word;
    }
    std::optional<std::string> value = context_.environment(name);
    if (!value) return std::nullopt;
    script_.from_environment.insert(name);
    return ShellWord{std::move(*value), {}, line_};
  }

  void Value(size_t begin, const std::string& name, bool quoted) {
    const std::optional<ShellWord> word = Find(name);
    if (!word) return IsDigit(name[0]) ? NotGiven(begin) : NotSet(begin);
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
  // Without quotes a shell makes words of a value.
  void PutSplit(const std::string& text) {
    size_t at = 0;
    if (!text.empty() && IsSpace(text[0])) begun_ = false;
    while (at < text.size()) {
      while (at < text.size() && IsSpace(text[at])) ++at;
      size_t end = at;
      while (end < text.size() && !IsSpace(text[end])) ++end;
      if (end > at) Current().text += text.substr(at, end - at);
      if (end < text.size()) begun_ = false;
      at = end;
    }
  }

  void PutWord(const ShellWord& word) {
    ShellWord& current = Current();
    current.text += word.text;
    current.not_known.insert(current.not_known.end(), word.not_known.begin(), word.not_known.end());
  }
  void PutWords(const std::vector<ShellWord>& words, bool quoted) {
    for (size_t i = 0; i < words.size(); ++i) {
      if (i > 0) begun_ = false;
      if (quoted || !splits_ || !words[i].not_known.empty()) {
        PutWord(words[i]);
      } else {
        PutSplit(words[i].text);
      }
    }
  }
  void NotKnown(size_t begin, const std::string& why) {
    const std::string text(text_.substr(begin, at_ - begin));
    Current().text += text;
    Current().not_known.push_back(fmt::format("{}, {}", Printable(text, 60), why));
  }
  void NotSet(size_t begin) {
    NotKnown(begin, outside_.empty() ? "which is set neither in the script nor in the environment"
                                     : fmt::format("which the script does not set ({})", outside_));
  }
  void NotGiven(size_t begin) { NotKnown(begin, "an argument of the script, which was not given"); }
  static std::string Conditioned(const std::string& text, const Variable& variable) {
    return fmt::format("{}, which line {} sets under a condition{}", text,
                       variable.conditional_line,
                       variable.why.empty() ? "" : " on " + variable.why);
  }
  void Conditional(size_t begin, const std::string& name) {
    const std::string text(text_.substr(begin, at_ - begin));
    Current().text += text;
    Current().not_known.push_back(Conditioned(Printable(text, 60), variables_[name]));
  }

  std::string_view text_;
  const ShellContext& context_;
  size_t at_ = 0;
  int line_ = 1;
  std::vector<Block> blocks_;
  Outcome outcome_;               // of the last command
  Done guard_ = Done::kYes;       // whether the command is done, by the && or || before it
  Done last_guard_ = Done::kYes;  // that of the command before it in a pipe
  bool negated_ = false;          // behind !
  bool bracketed_ = false;        // behind )
  bool assigned_ = true;          // nothing but known values was assigned
  std::string why_;               // what was last not known of a condition
  int nested_ = 0;                // of defaults within defaults
  bool splits_ = true;
  bool begun_ = false;
  std::vector<ShellWord> words_;
  std::vector<ShellWord> arguments_;
  std::map<std::string, Variable> variables_;
  std::vector<std::pair<std::string, bool>> here_documents_;
  std::string outside_;
  ShellScript script_;
};

}  // namespace

Result<ShellScript> ReadShell(const options::Source& source, const ShellContext& context) {
  try {
    return Reader(source.text, context).Read();
  } catch (const Unclosed& open) {
    return Status(StatusCode::kConfig, fmt::format("{}:{}: {} begins here and does not end",
                                                   source.name, open.line, open.what));
  }
}

}  // namespace keel::trainer::foreign
