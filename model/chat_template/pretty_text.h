// A value as Python's pprint.pformat lays it out: in lines of 80 characters, dicts in the order of
// their keys.
#pragma once

#include <string>

#include "model/chat_template/value.h"

namespace keel::model::jinja {

std::string PrettyText(const Value& value);

}  // namespace keel::model::jinja
