// The page at /: a conversation with the model in a browser, by the server's own API.
#pragma once

#include <string_view>

namespace keel::serve {

std::string_view ChatPage();

}  // namespace keel::serve
