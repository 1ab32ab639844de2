// Values and calls as Python's source has them, since models write arguments so. Torch-free.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/json.h"

namespace keel::turns {

// Each takes what it reads off the beginning of `text`, with the white space before it; nothing
// where no such thing begins, or what begins has no end, and `text` is then anywhere within it.

// A literal: texts (one quote or three), decimal numbers, True, False and None and JSON's words for
// them, lists, tuples (as lists) and dicts with texts for keys. Neither bytes, sets nor complex
// numbers.
std::optional<Json> TakePythonValue(std::string_view* text);

// name(key=value, ...), each value a literal, each key once.
struct PythonCall {
  std::string name;  // with dots, as of a method
  Json arguments = Json::object();
};
std::optional<PythonCall> TakePythonCall(std::string_view* text);

}  // namespace keel::turns
