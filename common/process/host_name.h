// The machine's name, as messages, locks and records give it.
#pragma once

#include <string>

namespace keel {

// "unknown" where the system does not tell.
std::string HostName();

}  // namespace keel
