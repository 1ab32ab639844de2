// The memory of a pretend GPU: addresses that a host cannot touch, and what stands behind them.
//
// A tensor's address lies in a range without any rights, so that a read or write by the host ends
// the process, with a word about it. What the device holds lies as far into a second range, which
// only the pretend device's own code finds.
#pragma once

#include <cstddef>
#include <cstdint>

namespace keel::testing::pretend {

// Of which the device has no more: null. Filled with 0xff, which are NaNs, so that nobody relies on
// what nobody wrote.
void* Allocate(size_t bytes, int device);
void Free(void* memory);

bool OnDevice(const void* memory);
// Which of the devices has it; -1: none.
int DeviceOf(const void* memory);
// Where the device finds what stands at `memory`, which may be null.
void* Behind(const void* memory);

// Pinned memory of the host, which kernels read and write where it is.
void* AllocatePinned(size_t bytes);
void FreePinned(void* memory);
bool IsPinned(const void* memory);

struct Usage {
  int64_t allocated = 0;
  int64_t peak = 0;
  int64_t total = 0;
};
Usage UsageNow();

}  // namespace keel::testing::pretend
