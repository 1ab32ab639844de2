// HTML's entities in a text, as Python's html.unescape has them.
#pragma once

#include <string>
#include <string_view>

namespace keel::model::jinja {

// The text with the characters that its entities stand for. Of HTML's 2,231 names some 200 are
// known here; a name with a semicolon that is none of them fails, as it may be one.
std::string UnescapedHtml(std::string_view text);

}  // namespace keel::model::jinja
