// Settings that somebody gives and nothing reads: what they are of is switched off elsewhere. A run
// goes on with them, since launch scripts carry whole sets of keys from one run to the next, and
// says so. Torch-free.
#pragma once

#include <string>
#include <vector>

#include "common/options/schema.h"

namespace keel::trainer {

struct Config;

// A sentence for each switch that is off while keys that are read with it alone are not at their
// defaults: which, where they were given, and what the switch is. `schema` is bound to `config`.
std::vector<std::string> IdleSettings(const Config& config, const options::Schema& schema);

// For tests: the keys, and the prefixes that end in a dot, of all switches; and how many these are.
std::vector<std::string> SwitchedKeys();
size_t NumberOfSwitches();

}  // namespace keel::trainer
