#include "trainer/engine/memory.h"

#include <malloc.h>
#include <sys/resource.h>

namespace keel::trainer {

void KeepLargeBlocks() {
  // Before 2.35 glibc takes no more than 32 MiB, and nothing where it is given more: what is larger
  // is mapped there.
  if (mallopt(M_MMAP_THRESHOLD, 1 << 30) == 0) mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
}

double PeakRssGib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1 << 20);  // from KiB
}

void ReturnFreeBlocks() { malloc_trim(0); }

std::map<std::string, double> DeviceMemoryMetrics(const parallel::CudaMemory& memory) {
  const auto gib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
  return {{"memory/device_allocated(GiB)", gib(memory.allocated)},
          {"memory/device_peak_allocated(GiB)", gib(memory.peak_allocated)},
          {"memory/device_reserved(GiB)", gib(memory.reserved)},
          {"memory/device_free(GiB)", gib(memory.free)}};
}

}  // namespace keel::trainer
