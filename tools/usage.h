// What a wrong command line is answered with.
#pragma once

#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

namespace keel::tools {

// Lines for stderr: the command that was understood so far and what is wrong with what follows. A
// word that is no command is repeated, with the command that is closest to it; likewise an option.
// `problem` is the parser's own text, for everything else.
std::string ExplainUsage(const CLI::App& app, int argc, const char* const* argv,
                         std::string_view problem);

// A word stands where a command should be and is none. CLI11 does not mind where --help follows.
bool NamesNoCommand(const CLI::App& app, int argc, const char* const* argv);

}  // namespace keel::tools
