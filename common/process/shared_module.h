// Keel's own shared objects: what of the program is loaded only by who needs it.
#pragma once

#include <string>
#include <string_view>

#include "common/status.h"

namespace keel {

struct Wheel;  // common/process/wheel_library.h

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
// `wheel`: what its libraries come with. An installed module has these loaded beforehand from where
// FindWheel finds them; one of a build tree knows where they are, unless the wheel's variable says
// otherwise.
Result<SharedModule> OpenModule(std::string_view file, Binding binding,
                                const Wheel* wheel = nullptr);

// Whether the module, which has the code at `address` (null: what it should have is not there), is
// the one that this program was built with, by the linker's `build` id of that. kUnavailable says
// both ids and what to do.
Status CheckBuild(const SharedModule& module, const void* address, std::string_view build);

// Loads the shared object at `path`, lazily bound and for all to see. kUnavailable names one that
// is missing or cut off, and what the loader says.
Status LoadLibrary(const std::string& path);

}  // namespace keel
