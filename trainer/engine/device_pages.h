// DevicePages: memory of a CPU, the "device" of runs without a GPU, for state that comes and goes.
//
// Pages of its own, which the system may take back while nobody uses them and which are warm again
// if it did not. torch's allocator does neither for large blocks: they come from glibc's heap,
// where an aligned block that was freed does not hold the next one of its size.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstdint>
#include <memory>

namespace keel::trainer {

// The memory behind a tensor, to be given back and made anew under it.
inline c10::StorageImpl* StorageOf(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

class DevicePages {
 public:
  // On huge pages where the kernel gives them; touched by nobody yet. Throws c10::Error when there
  // is no memory.
  explicit DevicePages(int64_t bytes);

  // The memory, which lives as long as the pointer does. What it holds is undefined after GiveUp,
  // zeros before. One at a time.
  at::DataPtr Lend() const;
  // Lets the system have the pages, from when it needs them. The pointer must be gone.
  void GiveUp();

 private:
  struct Mapping;
  std::shared_ptr<Mapping> mapping_;
};

}  // namespace keel::trainer
