// keel data tokenize, keel data info: folders of token shards.
#pragma once

#include <CLI/CLI.hpp>

namespace keel::tools {

void AddTokenizeCommand(CLI::App& data);
void AddInfoCommand(CLI::App& data);

}  // namespace keel::tools
