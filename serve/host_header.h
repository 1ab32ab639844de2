// Which names a client may call a server by that listens on this machine alone and asks for no key.
//
// A page of another site can make its own name resolve to 127.0.0.1 (DNS rebinding): the browser
// then lets its scripts read what the server answers, and says that name in its requests' Host.
// Pure.
#pragma once

#include <string_view>

namespace keel::serve {

// `header`: the value of Host, with or without a port. True for an IP address, `localhost` and what
// ends in `.localhost` (RFC 6761), and for `own`, the name that the server was told to listen at.
bool IsOwnHost(std::string_view header, std::string_view own);

}  // namespace keel::serve
