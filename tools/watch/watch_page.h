// A run that goes on as a page that keeps itself up to date, and refers to nothing but the server
// it came from. Pure, torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tools/watch/watch_state.h"

namespace keel::tools {

// The page: it asks "after/<version>" again and again and shows what comes back. Where the server
// wants a key it asks for that.
std::string_view WatchPage();

// The state as what such an answer holds: {"version", "title", "html"}.
std::string WatchAnswer(const WatchState& state, int64_t version);

}  // namespace keel::tools
