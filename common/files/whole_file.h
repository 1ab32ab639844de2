// A file by its path, as one text.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "common/status.h"

namespace keel {

// From its beginning to its end; of a pipe, to where its writer ends. Links are followed. An error
// names the path: kNotFound where nothing is there, and never a part of the file: a directory,
// which can be opened, and a disk that fails in its midst are errors, too.
Result<std::string> ReadWholeFile(const std::string& path);

// Readers see the old text or the new one, never a part: `path`.tmp, renamed. Not durable, as
// ReplaceFileDurably (file_system.h) is: for what a crash of the machine makes useless. Where it
// fails nothing is left, and what was there stays. One writer per path at a time.
Status ReplaceWholeFile(const std::string& path, std::string_view text, mode_t mode = 0666);

}  // namespace keel
