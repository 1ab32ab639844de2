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

// Whole pages of addresses without memory; null when there are none. Where memory was unmapped the
// device's own code ends the process, too.
void* Reserve(size_t bytes, int device);
void Unreserve(void* range);
bool Map(void* range);  // false: out of memory
void Unmap(void* range);

// Whole pages of addresses, of which Map makes memory and Unmap none: what the device's own code
// touches there then ends the process, too.
void* Reserve(size_t bytes, int device);
void Unreserve(void* range);
bool Map(void* range);  // false: out of memory
void Unmap(void* range);

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
