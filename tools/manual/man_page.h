// Pages of the manual, as roff with the macros of man(7), from the tables that --help is made of.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/manual/completion.h"

namespace keel::tools {

struct ManPage {
  std::string name;     // "keel-ckpt-ls"
  std::string section;  // "1"
  std::string text;
  std::string file() const { return name + "." + section; }
};

// keel(1), a page for each command, and keel.yaml(5) with every key of a configuration.
std::vector<ManPage> ManPages(const CommandTables& tables);

// Any text as roff that prints as it: backslashes, what would be a request, and characters that are
// not ASCII. A dash stays what can be typed; what stands in `backticks` is bold.
std::string RoffText(std::string_view text);

}  // namespace keel::tools
