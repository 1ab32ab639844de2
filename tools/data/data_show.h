// keel data show
#pragma once

#include <CLI/CLI.hpp>

namespace keel::tools {

// Adds `show` to `keel data`: rows of a configuration's data as its run learns from them.
void AddShowCommand(CLI::App& data);

}  // namespace keel::tools
