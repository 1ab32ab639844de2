// The version of the program, and of the module that belongs to it.
#pragma once

namespace keel::tools {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace keel::tools
