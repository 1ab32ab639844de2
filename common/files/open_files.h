// How many files and sockets this process may have open.
#pragma once

#include <cstdint>

#include "common/status.h"

namespace keel {

// Raises the soft limit (RLIMIT_NOFILE) to the hard one, which programs inherit that are started
// from here. kExhausted says what to do where that is less than `needed`; the limit is raised then,
// too.
Status RaiseOpenFileLimit(int64_t needed);

}  // namespace keel
