// A run at one moment as lines of text. Pure, torch-free.
#pragma once

#include <string>
#include <vector>

#include "tools/watch/watch_state.h"

namespace keel::tools {

// At most `rows` lines of at most `columns`, both at least 1: what is least important is left out
// first. `rows` 0: all, with a chart of 8 lines.
std::vector<std::string> WatchFrame(const WatchState& state, int columns, int rows);

}  // namespace keel::tools
