// PageMemory: large blocks of page-aligned memory, on huge pages where the kernel gives them.
//
// The first touch of fresh memory costs more than the copy into it; huge pages make that six times
// cheaper.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "common/parallel_for.h"

namespace keel {

struct FreePages {
  void operator()(std::byte* p) const { std::free(p); }
};
using PageMemory = std::unique_ptr<std::byte, FreePages>;

// Uninitialised; null when there is no memory. Aligned to 4096 bytes at least.
inline PageMemory AllocatePages(int64_t bytes) {
  constexpr int64_t kPage = 4096;
  constexpr int64_t kHugePage = int64_t{2} << 20;
  const int64_t alignment = bytes >= kHugePage ? kHugePage : kPage;
  const int64_t size = (bytes / alignment + 1) * alignment;
  PageMemory memory(static_cast<std::byte*>(
      std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(size))));
  if (memory != nullptr && alignment == kHugePage) {
    (void)madvise(memory.get(), static_cast<size_t>(size), MADV_HUGEPAGE);  // a hint: may fail
  }
  return memory;
}

// Makes the system give every page now, by so many threads, and not in the first copy into it.
// They are zeros after it.
inline void TouchPages(std::byte* memory, int64_t bytes, int threads) {
  constexpr int64_t kPage = 4096;
  constexpr int64_t kPart = int64_t{64} << 20;
  (void)ParallelFor((bytes + kPart - 1) / kPart, threads, [&](int64_t part, int) {
    const int64_t end = std::min(bytes, (part + 1) * kPart);
    for (int64_t at = part * kPart; at < end; at += kPage) memory[at] = std::byte{0};
    return Status::Ok();
  });
}

}  // namespace keel
