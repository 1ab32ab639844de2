// What may stand next on a command line of keel, from the same tables as --help and the reference
// of the configuration: the shells' scripts (shell_script.h) ask for it at each press of the key.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/options/schema.h"
#include "tools/launch/launch_flags.h"

namespace keel::tools {

// What a command line is made of. Nothing of it is owned.
struct CommandTables {
  const CLI::App& app;
  const std::vector<LaunchFlag>& launch_flags;
  const options::Schema& schema;
};

struct Completion {
  std::string word;  // the whole word; one that ends with "=" or "." is not yet one
  std::string meaning;
};

struct Completions {
  std::vector<Completion> words;  // sorted
  // Names of files may stand here, too, after these first characters of the word.
  bool files = false;
  std::string before_file;
};

// `words`: those after "keel", the last of which is being written: "" where one begins. All words
// that are returned begin with it.
Completions Complete(const CommandTables& tables, const std::vector<std::string>& words);

// A line for each, "word<TAB>meaning", and at last ":files BEFORE" where files may stand: what the
// scripts read.
std::string CompletionLines(const Completions& completions);

// The choices in the name of an option's type, as in "TEXT:{rl,sft,dpo}".
std::vector<std::string> ChoicesOf(const CLI::Option& option);
// Not those that --help does not show.
std::vector<const CLI::App*> ShownCommands(const CLI::App& app);
bool TakesValue(const CLI::Option& option);

}  // namespace keel::tools
