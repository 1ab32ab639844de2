// How many pretend GPUs there are, and which of them a thread uses.
#pragma once

#include <cstdint>

namespace keel::testing::pretend {

int Devices();  // KEEL_PRETEND_GPUS, or 8
void SetThreadsDevice(int index);
int ThreadsDevice();
// How often a GPU's host would have waited for it so far: for a copy that is not CudaModule's, or
// to know a value or a size.
int64_t Waits();
void CountWait();

}  // namespace keel::testing::pretend
