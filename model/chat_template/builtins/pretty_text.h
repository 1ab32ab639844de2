// A value as Python's pprint.pformat lays it out: in lines of 80 characters, dicts in the order of
// their keys.
#pragma once

#include <string>

#include "model/chat_template/jinja/runtime.h"

namespace keel::model::jinja {

// Fails beyond the limits, which what lies within other lists and dicts counts against each time.
std::string PrettyText(Machine& machine, const Value& value);

}  // namespace keel::model::jinja
