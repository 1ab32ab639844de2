// ShellFlow: what of a script is done, as far as its conditions are known: each `if`, `case`, loop,
// && and ||.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trainer/foreign/shell_script.h"

namespace keel::trainer::foreign {

// Whether something is done.
enum class ShellDone { kNo, kMaybe, kYes };
ShellDone Not(ShellDone done);

// How a command ended: what is done behind its && and behind its ||. One that is no test is taken
// to do its work.
struct ShellOutcome {
  ShellDone then = ShellDone::kYes;
  ShellDone otherwise = ShellDone::kMaybe;
  // Of a test; nothing: it is not known what it says.
  static ShellOutcome Of(std::optional<bool> said);
  // As a condition of `if`.
  ShellDone Truth() const { return otherwise == Not(then) ? then : ShellDone::kMaybe; }
};

class ShellFlow {
 public:
  // An if, case, loop, function or { begins. `runs`: its first branch.
  void Open(std::string kind, ShellDone runs = ShellDone::kYes);
  void Close();
  // The innermost block is of that kind.
  bool In(const char* kind) const { return !blocks_.empty() && blocks_.back().kind == kind; }
  // Some block around is of that kind.
  bool Within(const char* kind) const;
  // What a branch is done for: its own condition, if none before it was done.
  void Branch(ShellDone condition);
  // `then`: the last command was the condition. `elif`: one follows.
  void Then() { Branch(outcome_.Truth()); }
  void Elif();
  // `case WORD in`, whose patterns are next; and what comes of those of a branch.
  void BeginCase(ShellWord subject, bool patterns);
  bool at_patterns() const { return !blocks_.empty() && blocks_.back().patterns; }
  void NextPatterns() { blocks_.back().patterns = true; }
  // `;;&` and `;&` in the place of `;;`: whether a branch that follows is done is not known.
  void GoOnBehind() { blocks_.back().goes_on = true; }
  void EndPatterns(ShellDone matches);
  const ShellWord& subject() const { return blocks_.back().subject; }

  // What follows is done if the last command ended well (&&), or did not (||).
  void Guard(bool if_well) { guard_ = if_well ? outcome_.then : outcome_.otherwise; }
  // What follows is the next of a pipe.
  void Pipe() { guard_ = last_guard_; }
  void Negate() { negated_ = true; }
  // One command of a list has ended, if it was done.
  void Ended(ShellOutcome outcome);
  // The end of what && and || reach.
  void EndCommand();
  void SetOutcome(ShellOutcome outcome) { outcome_ = outcome; }

  // Whether what is being read is done; and if it is not known, what is not known of the innermost
  // condition.
  ShellDone Runs() const;
  std::string Why() const;
  void Because(const ShellWord& word);
  void ForgetWhy() { why_.clear(); }

 private:
  struct Block {
    std::string kind;
    ShellDone around = ShellDone::kYes;  // whether the block is reached
    ShellDone runs = ShellDone::kYes;    // whether its branch that is being read is done
    ShellDone earlier = ShellDone::kNo;  // whether a branch before it was
    ShellDone guard = ShellDone::kYes;   // by the && or || before it
    ShellOutcome before = {};            // how the command before it ended
    ShellWord subject = {};              // of case
    bool patterns = false;               // of case: a branch's patterns are next
    bool goes_on = false;                // of case: a branch that is done need not be the last
    std::string why = {};                // what is not known of the branch's condition
  };

  std::vector<Block> blocks_;
  ShellOutcome outcome_;                    // of the last command
  ShellDone guard_ = ShellDone::kYes;       // by the && or || before it
  ShellDone last_guard_ = ShellDone::kYes;  // that of the command before it in a pipe
  bool negated_ = false;                    // behind !
  std::string why_;                         // what was last not known of a condition
};

}  // namespace keel::trainer::foreign
