#include "trainer/memory.h"

#include <malloc.h>

namespace keel::trainer {

void KeepLargeBlocks() {
  // 32 MiB is the largest threshold glibc's mallopt takes on 64-bit machines; what is larger is
  // mapped.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
}

}  // namespace keel::trainer
