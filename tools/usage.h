// What a wrong command line is answered with.
#pragma once

#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

namespace keel::tools {

// Lines for stderr, which call the program by the name of `app`: the command that was understood so
// far and what is wrong with what follows. A word that is no command is repeated, with the command
// that is closest to it; likewise an option. `problem` is the parser's own text, for everything
// else.
std::string ExplainUsage(const CLI::App& app, int argc, const char* const* argv,
                         std::string_view problem);

// A word stands where a command should be and is none. CLI11 does not mind where --help follows.
bool NamesNoCommand(const CLI::App& app, int argc, const char* const* argv);

// Prints the help or version that was asked for, or ExplainUsage; returns the exit code.
int AnswerParseError(const CLI::App& app, int argc, const char* const* argv,
                     const CLI::ParseError& error);

}  // namespace keel::tools
