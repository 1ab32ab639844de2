// TensorMemory: the memory behind a tensor, which can go and come back under the tensor's views.
//
// When it comes back for the first time it is on pages of its own. So it goes to the system and not
// into an allocator's cache, and is at the same address from then on, with which steps may have
// been recorded. On a GPU the driver maps them (DeviceRange). On a CPU, the "device" of runs
// without a GPU, they are pages that the system may take back while nobody uses them and that are
// warm again if it did not: large blocks of torch's allocator come from glibc's heap, where an
// aligned block that was freed does not hold the next one of its size.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstdint>
#include <memory>

namespace keel::parallel {

inline c10::StorageImpl* StorageOf(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

class TensorMemory {
 public:
  // `tensor` is the whole of its storage.
  explicit TensorMemory(at::Tensor tensor);

  const at::Tensor& tensor() const { return tensor_; }
  int64_t bytes() const { return bytes_; }
  bool there() const { return bytes_ == 0 || StorageOf(tensor_)->nbytes() > 0; }
  // Comes back to where it is: not before its first Restore, nor where the tensor has an allocator
  // that is not the device's, or the device maps no memory at addresses of one's choice.
  bool stays() const { return pages_ != nullptr; }

  // Nothing of the device's work may use it any more. Views stay, and are valid again, with other
  // contents, after Restore. Each does nothing where there is nothing to do.
  void Release();
  // Throws c10::Error when there is no memory.
  void Restore();

  class Pages;

 private:
  at::Tensor tensor_;
  int64_t bytes_ = 0;
  std::shared_ptr<Pages> pages_;
};

}  // namespace keel::parallel
