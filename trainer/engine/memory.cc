#include "trainer/engine/memory.h"

#include <malloc.h>
#include <sys/resource.h>

namespace keel::trainer {

void KeepLargeBlocks() {
  // 32 MiB is the largest threshold glibc's mallopt takes on 64-bit machines; what is larger is
  // mapped.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
}

double PeakRssGib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1 << 20);  // from KiB
}

void ReturnFreeBlocks() { malloc_trim(0); }

}  // namespace keel::trainer
