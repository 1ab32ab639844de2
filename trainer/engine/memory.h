// Memory of a training process.
#pragma once

#include <map>
#include <string>

#include "parallel/groups/cuda_module.h"

namespace keel::trainer {

// Lets glibc keep freed large blocks instead of giving them back to the kernel at once, which would
// zero their pages again at every step: a tenth of a step's time on a CPU. Call once, early, from
// main.
void KeepLargeBlocks();

// Gives the kernel what glibc holds free, once: after large state that will not come again there.
void ReturnFreeBlocks();

// The most memory that this process has had resident so far.
double PeakRssGib();

// What the metrics of a step say of a GPU, in GiB: allocated by tensors now and at most, reserved
// by this process, and free to all.
std::map<std::string, double> DeviceMemoryMetrics(const parallel::CudaMemory& memory);

}  // namespace keel::trainer
