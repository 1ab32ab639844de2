// Host memory of a training process.
#pragma once

namespace keel::trainer {

// Lets glibc keep freed large blocks instead of giving them back to the kernel at once, which would
// zero their pages again at every step: a tenth of a step's time on a CPU. Call once, early, from
// main.
void KeepLargeBlocks();

// Gives the kernel what glibc holds free, once: after large state that will not come again there.
void ReturnFreeBlocks();

// The most memory that this process has had resident so far.
double PeakRssGib();

}  // namespace keel::trainer
