// MayReplace: a command writes over an earlier file of its own, and over no other.
#pragma once

#include <string>
#include <string_view>

#include "common/status.h"

namespace keel::tools {

// Whether a command may write its file at `path` without a word: nothing is there, or an earlier
// one of its own, which begins with `begins`. kCannotCreate for any other: a slip in a name would
// cost a file of the run's.
Status MayReplace(const std::string& path, std::string_view begins);

}  // namespace keel::tools
