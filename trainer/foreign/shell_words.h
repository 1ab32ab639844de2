// ShellWords: a script's text, read word by word, with the variables that it has set so far.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/foreign/shell_script.h"

namespace keel::trainer::foreign {

struct ShellVariable {
  std::vector<ShellWord> words;  // one; of an array, each element
  bool array = false;
  int conditional_line = 0;  // set there under a condition: which value it has is not known
  std::string why;           // what is not known of the condition
  std::string changed;       // what may have set it since: line 2 runs "source"; "": nothing
};

// Thrown where the text ends within quotes or brackets.
struct ShellUnclosed {
  int line;
  std::string what;
};

bool IsShellName(std::string_view text);
bool IsInShellName(char c);

class ShellWords {
 public:
  // Both must outlive it.
  ShellWords(std::string_view text, const ShellContext& context);

  char Peek(size_t ahead = 0) const;
  bool At(std::string_view what) const { return text_.substr(at_, what.size()) == what; }
  bool AtEnd() const { return at_ >= text_.size(); }
  void Next();
  // Blanks and continued lines.
  void SkipBlanks();
  void SkipLine();

  // The words that one word of the script becomes: none, where it is an empty variable; several,
  // where it is a list.
  std::vector<ShellWord> Word();
  // The same, where a shell makes no several words of one.
  std::vector<ShellWord> WholeWord();

 protected:
  // The variable's value; nothing where it has none.
  std::optional<ShellWord> Find(const std::string& name);
  // The text between the bracket at `at_` and the one that closes it.
  std::string Bracketed(char open, char close);

  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  std::vector<ShellWord> arguments_;
  std::map<std::string, ShellVariable> variables_;
  std::string outside_;  // what else may set variables
  std::set<std::string> from_environment_;
  std::string arguments_not_known_;  // why "$@" and $1 are not; "" where they are
  // What ${NAME:=default} has set since they were last taken out.
  std::vector<std::pair<std::string, ShellWord>> defaults_;

 private:
  ShellWord& Current();
  void Put(char c) { Current().text += c; }
  void SingleQuoted();
  void DoubleQuoted();
  // $'...', with C's escapes.
  void CQuoted();
  // {a,b} and {1..3} at `at_`, of which a shell makes several words; false where it is no such.
  bool Braces();
  // $X, ${X...}, $((...)), $(...), `...` at `at_`.
  void Expansion(bool quoted);
  void Calculate(size_t begin, const std::string& inner);
  std::optional<std::string> WithNumbers(
      const std::string& inner,
      const std::function<std::optional<int64_t>(const std::string&)>& lookup) const;
  // $(...) of a program whose answer depends on its arguments alone: basename, dirname, expr.
  void Substitute(size_t begin, const std::string& inner, bool quoted);
  // ${NAME}, ${NAME[@]}, ${NAME:-default} and their like.
  void Parameter(size_t begin, const std::string& inner, bool quoted);
  // The words of a text that stands within a word, by what is known here. `bare` says that they are
  // the whole of it: no ;, no |, no other sign of a shell's.
  std::vector<ShellWord> WordsWithin(const std::string& text, bool* bare);
  // A default, which may have expansions of its own.
  void PutText(const std::string& text, bool quoted);
  void Value(size_t begin, const std::string& name, bool quoted);
  // Without quotes a shell makes words of a value.
  void PutSplit(const std::string& text);
  // $IFS, between which signs that is; nothing where it is not known.
  std::optional<std::string> Separators() const;
  // What was put since the word had `length` signs stood in quotes.
  void MarkQuoted(size_t word, size_t length);
  void PutWord(const ShellWord& word);
  // `joined`: as one word with blanks between, as "$*".
  void PutWords(const std::vector<ShellWord>& words, bool quoted, bool joined);
  // All arguments but the `first` ones.
  void PutArguments(size_t begin, size_t first, bool quoted, bool joined);
  void NotKnown(size_t begin, const std::string& why);
  void NotSet(size_t begin);

  const ShellContext& context_;
  int nested_ = 0;  // of defaults within defaults
  bool splits_ = true;
  bool begun_ = false;
  std::vector<ShellWord> words_;
};

}  // namespace keel::trainer::foreign
