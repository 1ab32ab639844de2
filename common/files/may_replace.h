// MayReplace: what writes a whole file writes over an earlier one of its own, and over no other.
#pragma once

#include <string>
#include <string_view>

#include "common/status.h"

namespace keel {

// Whether a file may be written at `path` without a word: nothing is there, or an empty file, or an
// earlier one of the writer's own, which begins with `begins`. kCannotCreate for any other: a slip
// in a name would cost a file of the run's, or, of a device or a pipe, the system's own entry.
Status MayReplace(const std::string& path, std::string_view begins);

}  // namespace keel
