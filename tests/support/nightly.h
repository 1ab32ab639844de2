// Whether KEEL_NIGHTLY is set: the larger sweeps (docs/nightly.md).
#pragma once

#include <cstdlib>

namespace keel::testing {

inline bool Nightly() { return std::getenv("KEEL_NIGHTLY") != nullptr; }

}  // namespace keel::testing
