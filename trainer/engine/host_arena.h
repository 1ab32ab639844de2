// HostArena: one block of host memory that is sized once and kept for the life of a run.
//
// Page-aligned, on huge pages where the kernel gives them, every page touched at the start, so that
// the first copy into it costs no more than the later ones; pinned when a CUDA module is given,
// which must outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "parallel/groups/cuda_module.h"

namespace keel::trainer {

class HostArena {
 public:
  // `cuda` may be null. Throws Error(kUnavailable) when there is no memory.
  HostArena(int64_t bytes, parallel::CudaModule* cuda);

  std::byte* data() { return memory_.get(); }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_;
  std::unique_ptr<std::byte, std::function<void(std::byte*)>> memory_;
};

}  // namespace keel::trainer
