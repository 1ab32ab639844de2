// Which program this is, for records and for ranks that must all be of one build.
#pragma once

#include <string>
#include <string_view>

namespace keel {

// "0.1.0".
std::string_view ProgramVersion();

// The linker's build id of the object, program or module, that holds the code at `address`, in
// hexadecimal digits: the same in every copy of it, another after every change. "unknown" where the
// linker wrote none.
std::string BuildId(const void* address);

}  // namespace keel
