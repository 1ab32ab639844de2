// What a document gives an option: the value, in the option's kind, range and choices, or what is
// wrong with it.
#pragma once

#include <optional>
#include <string>

#include "common/json.h"
#include "common/options/option.h"
#include "common/options/yaml_tree.h"

namespace keel::options {

// What an option takes, as in "expected an integer or null".
std::string KindName(const Option& option);
// The most that a number, or an item of a list of them, may be. Where the option does not say,
// counts go into 32 bits on their way, and numbers into fp32.
double LargestOf(const Option& option);
// A node as in "got a list".
std::string Shown(const YamlNode& node);

// A node as a value, typed by its looks: what a free map holds.
Json FreeValue(const YamlNode& node);

// Nothing when the node is no value for the option: `problem` says why, and `advice`, which may
// stay empty, what to write instead.
std::optional<Json> Convert(const Option& option, const YamlNode& node, std::string& problem,
                            std::string& advice);

}  // namespace keel::options
