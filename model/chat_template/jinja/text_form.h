// How values are written: as Python's str() and repr() write them, and as json.dumps does.
#pragma once

#include <optional>
#include <string>

#include "model/chat_template/jinja/value.h"

namespace keel::model::jinja {

// str(); "" for undefined. Fails for what has no text that means anything, such as a generator.
std::string ToText(const Value& value);
void AppendText(const Value& value, std::string* out);
void AppendRepr(const Value& value, std::string* out);
// ascii(): repr() with escapes for what is not ASCII.
void AppendAscii(const Value& value, std::string* out);
// repr() of a float: the shortest text that reads back as it.
std::string FloatText(double number);

// json.dumps' arguments of the same names.
struct JsonForm {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // what one level is indented by
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

std::string ToJsonText(const Value& value, const JsonForm& form);

}  // namespace keel::model::jinja
