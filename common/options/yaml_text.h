// Values as YAML that reads back to them.
#pragma once

#include <string>

#include "common/json.h"

namespace keel::options {

// On one line: lists and maps in brackets; text that any reader of YAML could take for something
// else, or a terminal for a command, in quotes.
std::string YamlFlow(const Json& value);

}  // namespace keel::options
