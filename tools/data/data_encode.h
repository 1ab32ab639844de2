// keel data encode, keel data decode: rows of text and conversations as token ids, and back.
#pragma once

#include <CLI/CLI.hpp>

namespace keel::tools {

void AddEncodeCommand(CLI::App& data);
void AddDecodeCommand(CLI::App& data);

}  // namespace keel::tools
