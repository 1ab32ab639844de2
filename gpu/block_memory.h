// How much memory a launch may ask for. Of the host alone; the same for both launchers.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace keel::gpu {

inline constexpr int kBlockThreads = 256;

// Of a block, for its teams together: the 48 KiB that every GPU gives without being asked
// otherwise, less what sums over a block have of their own.
inline constexpr int64_t kBlockMemory = (48 << 10) - (1 << 10);

inline void CheckBlockMemory(int64_t bytes) {
  if (bytes > kBlockMemory) {
    throw std::runtime_error("a kernel whose blocks take " + std::to_string(bytes) +
                             " bytes of memory, of which they have " +
                             std::to_string(kBlockMemory));
  }
}

}  // namespace keel::gpu
