// Keel's own shared objects: what of the program is loaded only by who needs it.
#pragma once

#include <string>
#include <string_view>

#include "common/status.h"

namespace keel {

// The directory of the running program, with a slash at its end.
std::string ProgramDirectory();
// Of the running program's file.
std::string ProgramPath();

struct SharedModule {
  void* handle = nullptr;  // of dlopen; never closed
  std::string path;
};

// When its symbols are looked up: all at once, so that a missing one is an error here, or each when
// it is first used.
enum class Binding { kNow, kLazy };

// Loads `file` from beside the running program, or from lib/keel/ of where it is installed. Its
// symbols serve what is loaded later. kUnavailable names the places and what the loader says.
Result<SharedModule> OpenModule(std::string_view file, Binding binding);

}  // namespace keel
