// HTML's entities in a text, as Python's html.unescape has them.
#pragma once

#include <string>
#include <string_view>

namespace keel::model::jinja {

// The text with the characters that its entities stand for, by name or by number.
std::string UnescapedHtml(std::string_view text);

}  // namespace keel::model::jinja
