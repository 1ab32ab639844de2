// How many pretend GPUs there are, and which of them a thread uses.
#pragma once

namespace keel::testing::pretend {

int Devices();  // KEEL_PRETEND_GPUS, or 8
void SetThreadsDevice(int index);
int ThreadsDevice();

}  // namespace keel::testing::pretend
