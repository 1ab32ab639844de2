// HTML's entities. See html_entities.h.
#pragma once

#include <string_view>

namespace keel::model::jinja {

// "AElig!c6 Aacute!c1 Abreve=102 ... acE=223e,333 ...": a name, and the one or two characters that
// it stands for; behind "!" where it counts without a semicolon, too, as HTML's oldest do.
std::string_view HtmlEntityTable();

}  // namespace keel::model::jinja
