// A file of the user's, by its path, as one text.
#pragma once

#include <string>

#include "common/status.h"

namespace keel {

// From its beginning to its end; of a pipe, to where its writer ends. Links are followed. An error
// names the path: kNotFound where nothing is there, and never a part of the file: a directory,
// which can be opened, and a disk that fails in its midst are errors, too.
Result<std::string> ReadWholeFile(const std::string& path);

}  // namespace keel
