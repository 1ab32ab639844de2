// The share of the processor that background work takes from what it serves.
#pragma once

namespace keel {

// This thread, and all that it starts from now on, runs with a tenth of the weight that it had: at
// full speed where a core is free, and in the gaps of the threads that train where none is. Where
// the system refuses it, nothing changes.
void RunInBackground();

}  // namespace keel
