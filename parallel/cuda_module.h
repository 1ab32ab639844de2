// CudaModule: everything that needs CUDA, in a shared object of its own.
//
// libtorch_cuda costs 350 MB and 0.2 s a process, so keel_cuda is loaded with dlopen, before the
// first torch call, and only when the configuration says `device: cuda`. Host code sees this
// interface alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/status.h"

namespace keel::parallel {

class ProcessGroup;
class Store;
struct GroupOptions;

// Memory of a device, in bytes, as the caching allocator sees it.
struct CudaMemory {
  int64_t allocated = 0;
  int64_t peak_allocated = 0;
  int64_t reserved = 0;
  int64_t total = 0;
};

class CudaModule {
 public:
  virtual ~CudaModule() = default;
  // The number of usable devices, or kUnavailable with what the driver says.
  virtual Result<int> DeviceCount() const = 0;
  virtual void SetDevice(int index) = 0;
  // As its driver calls it: "NVIDIA H100 80GB HBM3"; "" where it does not say.
  virtual std::string DeviceName(int /*index*/) const { return ""; }
  // NCCL group; see MakeProcessGroup.
  virtual std::unique_ptr<ProcessGroup> MakeGroup(const Store& store, int global_rank,
                                                  const GroupOptions& options) = 0;
  // Waits for all work of the current device.
  virtual void Synchronize() = 0;
  virtual CudaMemory Memory(int index) const = 0;

  // Pinned host memory, for copies that run beside compute.
  virtual Result<void*> AllocatePinned(size_t bytes) = 0;
  virtual void FreePinned(void* memory) = 0;
  // Copies on a side stream that first waits for what the current stream has been given. The ticket
  // is waited for on the host with WaitCopy, on any thread; tickets complete in order. WaitCopy
  // returns the first failure of any copy so far: what copies were to bring is not trusted after
  // it.
  virtual int64_t CopyToHost(void* host, const void* device, size_t bytes) = 0;
  virtual int64_t CopyToDevice(void* device, const void* host, size_t bytes) = 0;
  virtual Status WaitCopy(int64_t ticket) = 0;
};

// Loads keel_cuda once a process, from beside the program. kUnavailable when the build has none.
Result<CudaModule*> LoadCudaModule();

}  // namespace keel::parallel
