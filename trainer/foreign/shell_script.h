// A launch script read without a shell: its commands with their words, as far as they follow from
// the text. Nothing is executed and no file but the script is read.
//
// Understood: quotes, comments, continued lines, here-documents, redirections, variables and arrays
// with their defaults (${X:-y}), "$@" and $1, integer arithmetic. What only a shell could know, the
// output of a command or a variable that is set under a condition, is said of the word that it
// stands in.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/options/yaml_tree.h"

namespace keel::trainer::foreign {

struct ShellWord {
  std::string text;                    // what is not known stays as it is written
  std::vector<std::string> not_known;  // "$(date), which only a shell could run"
  int line = 0;
  bool quoted_pattern = false;  // a *, ? or [ of it stands in quotes, where it is no pattern
};

struct ShellCommand {
  std::vector<ShellWord> words;
  int line = 0;
};

struct ShellScript {
  std::vector<ShellCommand> commands;
  std::set<std::string> from_environment;  // variables whose values came from there
  int ended_at = 0;  // the line of the `exit` at which it ends; 0: none is sure to run
};

struct ShellContext {
  std::vector<std::string> arguments;  // $1 and on, and "$@"
  std::function<std::optional<std::string>(const std::string&)> environment;
};

// kConfig where the text ends within quotes or brackets.
Result<ShellScript> ReadShell(const options::Source& source, const ShellContext& context);

}  // namespace keel::trainer::foreign
