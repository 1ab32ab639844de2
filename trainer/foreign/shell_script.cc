#include "trainer/foreign/shell_script.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "common/text.h"
#include "trainer/foreign/shell_arithmetic.h"
#include "trainer/foreign/shell_condition.h"
#include "trainer/foreign/shell_flow.h"
#include "trainer/foreign/shell_words.h"

namespace keel::trainer::foreign {

namespace {

class Reader : private ShellWords {
 public:
  using ShellWords::ShellWords;

  ShellScript Read() {
    while (!AtEnd()) Command();
    script_.from_environment = std::move(from_environment_);
    return std::move(script_);
  }

 private:
  // 1. The words up to an end of a command. 2. What they assign. 3. What is left is a command.
  void Command() {
    SkipBlanks();
    if (AtEnd()) return;
    const char c = Peek();
    if (c == '#') return SkipLine();
    if (c == '\n') {
      Next();
      SkipHereDocuments();
      return;
    }
    if (flow_.at_patterns()) return Patterns();
    if (At("&&") || At("||")) {
      flow_.Guard(c == '&');
      Next();
      return Next();
    }
    if ((At(";;") || At(";&")) && flow_.In("case")) {
      flow_.NextPatterns();
      if (At(";&") || At(";;&")) flow_.GoOnBehind();
      if (At(";;&")) Next();
      Next();
      return Next();
    }
    if (At("((")) return Arithmetic();
    if (c == '(') subshells_.emplace_back(variables_, outside_);
    if (c == ')' && !subshells_.empty()) {  // what was set in there is forgotten
      std::tie(variables_, outside_) = std::move(subshells_.back());
      subshells_.pop_back();
    }
    if (c == ';' || c == '&' || c == '|' || c == '(' || c == ')') {
      if (c == '|') flow_.Pipe();
      if (c == ')') flow_.SetOutcome(ShellOutcome::Of(std::nullopt));
      bracketed_ = c == ')';
      return Next();
    }
    ShellCommand command;
    command.line = line_;
    bool declaring = false;
    bool assigns = false;
    local_ = false;
    transforms_ = refers_ = false;
    assigned_ = true;
    before_.clear();
    SayWhatArgumentsAre();
    while (true) {
      SkipBlanks();
      const char next = Peek();
      if (!command.words.empty() && command.words[0].text == "[[" && TestWord(&command)) continue;
      if (AtEnd() || next == '\n' || next == ';' || next == '|' || next == ')' || next == '(')
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
      SetDefaults();
      if (words.size() == 1 && (Peek() == '<' || Peek() == '>') &&
          std::all_of(words[0].text.begin(), words[0].text.end(), IsDigit))
        continue;  // 2>
      if (command.words.empty() && words.size() == 1) {
        const std::string& word = words[0].text;
        if (Reserved(word)) {
          if (word == "case" || word == "}" || word == "fi" || word == "done" || word == "esac")
            return;
          SayWhatArgumentsAre();
          continue;
        }
        declaring = Declares(word);
        local_ = declaring && word != "export" && word != "readonly";
        if (assigns) TakeBack();
      }
      if (at_ == before) Next();
      for (ShellWord& word : words) command.words.push_back(std::move(word));
      transforms_ = declaring && command.words.size() > 1 && command.words[0].text != "export" &&
                    std::ranges::any_of(command.words, TransformsValues);
      refers_ = transforms_ && std::ranges::any_of(command.words, Refers);
      if (transforms_ && IsShellName(command.words.back().text)) Declare(command.words.back().text);
    }
    bracketed_ = false;
    if (!command.words.empty() || assigns) flow_.Ended(OutcomeOf(command));
    if (command.words.size() == 1 && Peek() == '(') {
      functions_.insert(command.words[0].text);
    } else {
      MayCall(command);
    }
    if (!command.words.empty()) Finish(std::move(command));
    flow_.EndCommand();
  }

  // A function is read long before it is called, and may set what was set in between.
  void MayCall(const ShellCommand& command) {
    if (command.words.empty() || !functions_.contains(command.words[0].text)) return;
    if (flow_.Within("function") || flow_.Runs() == ShellDone::kNo) return;
    for (const std::string& name : function_sets_) variables_[name].conditional_line = command.line;
    if (!function_runs_.empty()) MayChangeAll(command.line, function_runs_);
  }

  static bool Declares(const std::string& command) {
    return command == "export" || command == "readonly" || command == "local" ||
           command == "declare" || command == "typeset";
  }

  // A command whose text is not read here may set any variable. One that it does not find in the
  // script may be of the environment, where it can be given.
  void MayChangeAll(int line, const std::string& command) {
    outside_ = fmt::format("line {} runs \"{}\", which may set it", line, command);
    for (auto& [name, variable] : variables_) MayChange(&variable, line, command);
    if (flow_.Within("function")) function_runs_ = command;
  }
  static void MayChange(ShellVariable* variable, int line, const std::string& command) {
    variable->conditional_line = line;
    variable->changed = fmt::format("line {} runs \"{}\"", line, command);
  }

  // Words of `export` and its like that are no plain assignments: "NAME=value" in quotes, and
  // $(cat file), which may name any variable.
  void ReadDeclared(const ShellCommand& command) {
    for (size_t i = 1; i < command.words.size(); ++i) {
      const ShellWord& word = command.words[i];
      const std::string name = word.text.substr(0, word.text.find_first_of("+="));
      if (name != word.text && IsShellName(name)) {
        MayChange(&variables_[name], command.line, command.words[0].text);
        if (flow_.Within("function")) function_sets_.insert(name);
      } else if (!word.not_known.empty()) {
        MayChangeAll(command.line, command.words[0].text);
      }
    }
  }

  void Declare(const std::string& name) {
    transformed_.insert(name);
    if (refers_) references_.insert(name);
  }

  // A word of [[ ... ]], where operators are words, too; false where it has ended.
  bool TestWord(ShellCommand* command) {
    if (AtEnd() || command->words.back().text == "]]") return false;
    if (Peek() == '\n') {
      Next();
      return true;
    }
    const size_t before = at_;
    std::vector<ShellWord> words = WholeWord();
    for (ShellWord& word : words) command->words.push_back(std::move(word));
    if (at_ != before) return true;
    const size_t length = At("&&") || At("||") ? 2 : 1;
    command->words.push_back({std::string(text_.substr(at_, length)), {}, line_});
    for (size_t i = 0; i < length; ++i) Next();
    return true;
  }

  void SayWhatArgumentsAre() {
    arguments_not_known_ =
        flow_.Within("function") ? "which is an argument of a function" : arguments_changed_;
  }

  // An option of `declare` by which a value is not what is assigned: -i, -l, -u, -c, -n, -A.
  static bool TransformsValues(const ShellWord& word) {
    return word.text.starts_with('-') && word.text.find_first_of("ilucnA") != std::string::npos;
  }
  // declare -n: what is assigned is assigned to the variable that it names.
  static bool Refers(const ShellWord& word) {
    return word.text.starts_with('-') && word.text.find('n') != std::string::npos;
  }

  // Which no option of `declare` changes.
  static bool IsPlainNumber(const std::string& text) {
    return !text.empty() && (text[0] != '0' || text.size() == 1) &&
           std::all_of(text.begin(), text.end(), IsDigit);
  }

  // A=1 before a command is of that command alone.
  void TakeBack() {
    for (auto& [name, variable] : before_) {
      if (variable) {
        variables_[name] = std::move(*variable);
      } else {
        variables_.erase(name);
      }
    }
    before_.clear();
  }

  // ((...)): what it sets, and whether it is 0, is not worked out.
  void Arithmetic() {
    const std::string inner = Bracketed('(', ')');
    flow_.Because({"", {fmt::format("(({}), which only a shell could work out", inner.substr(1))}});
    for (const std::string& name : ShellArithmeticSets(inner)) Changes(name);
    flow_.Ended(ShellOutcome::Of(std::nullopt));
    flow_.EndCommand();
  }
  // Something sets the variable, to what is not known.
  void Changes(const std::string& name) {
    if (!IsShellName(name) || flow_.Runs() == ShellDone::kNo) return;
    if (references_.contains(name)) MayChangeAll(line_, name);
    variables_[name].conditional_line = line_;
    if (flow_.Within("function")) function_sets_.insert(name);
  }

  // "WORD in": the branches follow.
  void Case() {
    SkipBlanks();
    std::vector<ShellWord> words = WholeWord();
    if (words.empty()) words.push_back({"", {}, line_});
    while (IsSpace(Peek()) || At("\\\n")) Next();
    const bool in = At("in");
    if (in) at_ += 2;
    flow_.BeginCase(std::move(words[0]), in);
  }
  // "a | b)" or "esac".
  void Patterns() {
    if (Peek() == '(') Next();
    ShellDone matches = ShellDone::kNo;
    while (true) {
      SkipBlanks();
      std::vector<ShellWord> words = WholeWord();
      if (words.size() == 1 && words[0].text == "esac" && Peek() != ')') return flow_.Close();
      if (words.empty()) words.push_back({"", {}, line_});
      const auto match = ShellOutcome::Of(ShellMatch(flow_.subject(), words[0]));
      matches = std::max(matches, match.then);
      if (matches == ShellDone::kMaybe) flow_.Because(flow_.subject());
      SkipBlanks();
      if (Peek() != '|') break;
      Next();
    }
    if (Peek() == ')') Next();
    flow_.EndPatterns(matches);
  }

  ShellOutcome OutcomeOf(const ShellCommand& command) {
    if (command.words.empty()) return assigned_ ? ShellOutcome::Of(true) : ShellOutcome();
    const std::string& name = command.words[0].text;
    if (name == "true" || name == ":") return ShellOutcome::Of(true);
    if (name == "false") return ShellOutcome::Of(false);
    if (name != "[" && name != "[[" && name != "test") return {};
    const std::optional<bool> said = ShellTest(command.words);
    for (const ShellWord& word : command.words) {
      if (!said) flow_.Because(word);
    }
    return ShellOutcome::Of(said);
  }

  void Finish(ShellCommand command) {
    const std::string& name = command.words[0].text;
    const ShellDone runs = flow_.Runs();
    if (name == "for") flow_.Open("for", ShellDone::kMaybe);
    if (runs == ShellDone::kNo) return;
    if (name == "exit" && runs == ShellDone::kYes && subshells_.empty()) {
      at_ = text_.size();
      script_.ended_at = command.line;
    } else if (name == "for" || name == "read" || name == "mapfile" || name == "readarray" ||
               name == "unset" || name == "getopts" || name == "let" || name == "printf") {
      for (size_t i = 1; i < command.words.size(); ++i) {
        const std::string& word = command.words[i].text;
        if (name == "printf" && command.words[i - 1].text != "-v") continue;
        const auto end = std::find_if_not(word.begin(), word.end(), IsInShellName);
        if (name == "unset" && word == "IFS" && runs == ShellDone::kYes) {
          variables_.erase(word);  // the default is back
          continue;
        }
        if (end == word.end() || name == "let") Changes(std::string(word.begin(), end));
        if (name == "for") break;
      }
    } else if ((name == "shift" || name == "set") && !flow_.Within("function")) {
      ChangeArguments(command, runs);
    } else if (name == "source" || name == "." || name == "eval") {
      MayChangeAll(command.line, name);
    } else if (Declares(name)) {
      ReadDeclared(command);
    }
    script_.commands.push_back(std::move(command));
  }

  // "shift", "shift 2", "set -- a b".
  void ChangeArguments(const ShellCommand& command, ShellDone runs) {
    std::vector<ShellWord> now = arguments_;
    if (command.words[0].text == "shift") {
      const size_t count = command.words.size() > 1 && command.words[1].text.size() == 1
                               ? static_cast<size_t>(command.words[1].text[0] - '0')
                               : 1;
      now.erase(now.begin(), now.begin() + static_cast<int64_t>(std::min(count, now.size())));
      if (now.size() == arguments_.size()) return;
    } else {
      auto first = command.words.begin() + 1;
      const auto dashes = std::find_if(first, command.words.end(),
                                       [](const ShellWord& w) { return w.text == "--"; });
      const bool options = first == command.words.end() || first->text.starts_with('-') ||
                           first->text.starts_with('+');
      if (options && dashes == command.words.end()) return;  // set -euo pipefail
      now.assign(options ? dashes + 1 : first, command.words.end());
    }
    if (runs == ShellDone::kYes) {
      arguments_ = std::move(now);
    } else {
      arguments_changed_ = fmt::format("which line {} sets under a condition", command.line);
    }
  }

  // Whether a word at the start of a command is the shell's own, after which a command begins.
  bool Reserved(const std::string& word) {
    if (word == "if" || word == "while" || word == "until") {
      flow_.ForgetWhy();
      flow_.Open(word, word == "if" ? ShellDone::kYes : ShellDone::kMaybe);
    } else if (word == "{") {
      if (bracketed_) {  // f() {
        flow_.Open("function", ShellDone::kMaybe);
      } else {
        flow_.Open(word, ShellDone::kYes);
      }
    } else if (word == "case") {
      flow_.Open(word);
      Case();
    } else if (word == "fi" || word == "done" || word == "esac" || word == "}") {
      if (flow_.In("function")) EndFunction();
      flow_.Close();
    } else if (word == "then" || word == "else" || word == "elif") {
      if (!flow_.In("if")) return true;
      if (word == "then") {
        flow_.Then();
      } else if (word == "else") {
        flow_.Branch(ShellDone::kYes);
      } else {
        flow_.Elif();
      }
    } else if (word == "!") {
      flow_.Negate();
    } else {
      if (word == "function") {
        SkipBlanks();
        for (const ShellWord& name : Word()) functions_.insert(name.text);
        bracketed_ = true;
      }
      return word == "do" || word == "time" || word == "function";
    }
    return true;
  }

  // Its own $IFS ends with it; of other variables of its own that is not worked out.
  void EndFunction() {
    if (!ifs_around_) return;
    variables_.erase("IFS");
    if (*ifs_around_) variables_["IFS"] = std::move(**ifs_around_);
    ifs_around_.reset();
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
    if (Peek() != '\n' && !AtEnd()) Word();
  }
  void SkipHereDocuments() {
    for (const auto& [delimiter, tabs] : here_documents_) {
      while (!AtEnd()) {
        const size_t end = std::min(text_.find('\n', at_), text_.size());
        std::string_view row = text_.substr(at_, end - at_);
        while (tabs && row.starts_with('\t')) row.remove_prefix(1);
        const bool last = row == delimiter;
        SkipLine();
        if (!AtEnd()) Next();
        if (last) break;
      }
    }
    here_documents_.clear();
  }

  // NAME=value, NAME+=value, NAME=(words).
  bool Assignment() {
    size_t end = at_;
    while (end < text_.size() && IsInShellName(text_[end])) ++end;
    const std::string name(text_.substr(at_, end - at_));
    const bool element = IsShellName(name) && text_.substr(end, 1) == "[";
    if (element) end = std::min(text_.find_first_of("]\n", end), text_.size() - 1) + 1;
    const bool append = text_.substr(end, 2) == "+=";
    if (!IsShellName(name) || (!append && text_.substr(end, 1) != "=")) return false;
    at_ = end + (append ? 2 : 1);
    ShellVariable value;
    if (Peek() == '(') {
      const int line = line_;
      Next();
      value.array = true;
      while (true) {
        while (IsSpace(Peek()) || At("\\\n") || At("\\\r\n"))
          Peek() == '\n' ? Next() : SkipBlanks();
        if (AtEnd()) throw ShellUnclosed{line, "the list of " + name};
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
      value.words = WholeWord();
      if (value.words.empty()) value.words.push_back({"", {}, line_});
      assigned_ = assigned_ && value.words[0].not_known.empty();
    }
    SetDefaults();
    if (transforms_) Declare(name);
    if (flow_.Runs() == ShellDone::kNo) return true;
    if (transformed_.contains(name)) {
      const bool refers = references_.contains(name);
      if (refers && !transforms_) MayChangeAll(line_, name + "=");
      for (ShellWord& word : value.words)
        if (append || refers || !IsPlainNumber(word.text))
          word.not_known.push_back(
              fmt::format("{}={}, which its declaration changes", name, Printable(word.text, 60)));
    }
    ShellWord had{"", {}, line_};  // of the environment, where the script has set none
    if (append && !variables_.contains(name)) had = Find(name).value_or(had);
    if (flow_.Within("function") && !local_) function_sets_.insert(name);
    const auto set = variables_.find(name);
    before_.emplace_back(name, set != variables_.end() ? std::optional(set->second) : std::nullopt);
    if (name == "IFS" && local_ && flow_.Within("function") && !ifs_around_)
      ifs_around_ = before_.back().second;
    ShellVariable& variable = variables_[name];
    if (element) {  // which of the words it is, is not worked out
      variable.conditional_line = line_;
    } else if (append && value.array) {
      for (ShellWord& word : value.words) variable.words.push_back(std::move(word));
      variable.array = true;
    } else if (append) {
      if (variable.words.empty()) variable.words.push_back(std::move(had));
      ShellWord& word = variable.words[0];
      word.text += value.words[0].text;
      for (std::string& why : value.words[0].not_known) word.not_known.push_back(std::move(why));
    } else {
      variable = std::move(value);
    }
    if (flow_.Runs() == ShellDone::kMaybe) {
      variable.conditional_line = line_;
      variable.why = flow_.Why();
    }
    return true;
  }

  // ${NAME:=default} of the words that were read.
  void SetDefaults() {
    for (auto& [name, word] : std::exchange(defaults_, {})) {
      if (!IsShellName(name) || flow_.Runs() == ShellDone::kNo) continue;
      variables_[name] = ShellVariable{{std::move(word)}, false, 0, {}, {}};
      if (flow_.Runs() == ShellDone::kMaybe) {
        variables_[name].conditional_line = line_;
        variables_[name].why = flow_.Why();
      }
    }
  }

  ShellFlow flow_;
  std::set<std::string> functions_;      // that the script has
  std::set<std::string> function_sets_;  // what any of them sets
  bool local_ = false;                   // the command declares variables of its function's own
  // $IFS around the function that is being read, where that has one of its own.
  std::optional<std::optional<ShellVariable>> ifs_around_;
  std::string function_runs_;          // by what any of them may set all variables
  bool transforms_ = false;            // the command declares variables that change values
  bool refers_ = false;                // those are other names of variables
  std::set<std::string> transformed_;  // such variables
  std::set<std::string> references_;
  // What subshells that are open have to forget.
  std::vector<std::pair<std::map<std::string, ShellVariable>, std::string>> subshells_;
  // What the assignments of the command that is being read have replaced.
  std::vector<std::pair<std::string, std::optional<ShellVariable>>> before_;
  std::string arguments_changed_;  // why the script's arguments are not known any more
  bool bracketed_ = false;         // behind )
  bool assigned_ = true;           // nothing but known values was assigned
  std::vector<std::pair<std::string, bool>> here_documents_;
  ShellScript script_;
};

}  // namespace

Result<ShellScript> ReadShell(const options::Source& source, const ShellContext& context) {
  try {
    return Reader(source.text, context).Read();
  } catch (const ShellUnclosed& open) {
    return Status(StatusCode::kConfig, fmt::format("{}:{}: {} begins here and does not end",
                                                   source.name, open.line, open.what));
  }
}

}  // namespace keel::trainer::foreign
