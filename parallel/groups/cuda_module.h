// CudaModule: everything that needs CUDA, in a shared object of its own.
//
// libtorch_cuda costs 350 MB and 0.2 s a process, so keel_cuda is loaded with dlopen, before the
// first torch call, and only when the configuration says `device: cuda`. Host code sees this
// interface alone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/status.h"
#include "gpu/kernel_table.h"

namespace keel::parallel {

class ProcessGroup;
class Store;
struct GroupOptions;

// Memory of a device, in bytes.
struct CudaMemory {
  int64_t allocated = 0;  // of this process, by tensors that live, with what ranges have mapped
  int64_t peak_allocated = 0;  // the most of it so far
  int64_t reserved = 0;        // of this process, with what its allocator keeps for later tensors
  int64_t free = 0;            // as the driver sees it: of no process
  int64_t total = 0;
};

// A GPU, as its driver describes it.
struct GpuFacts {
  std::string name;     // "NVIDIA H100 80GB HBM3"
  std::string uuid;     // "GPU-8f3e…"; a slice of a GPU has one of its own
  std::string bus;      // "0000:3b:00.0", as in /sys/bus/pci/devices
  int capability = 0;   // 90 for sm_90
  int64_t memory = 0;   // bytes
  std::string runtime;  // of CUDA that this program has, "13.0"
  std::string driver;   // the newest CUDA that the driver serves, "13.0"
};

// A piece of work of a device that has been recorded (a CUDA graph).
class Recording {
 public:
  virtual ~Recording() = default;
  // Gives the current stream all of it again, on the addresses that it was recorded with.
  virtual void Replay() = 0;
};

// Addresses of a device which stay while the memory at them comes and goes.
class DeviceRange {
 public:
  virtual ~DeviceRange() = default;
  virtual void* address() const = 0;
  // Memory at all of the addresses, which holds anything; kUnavailable when there is none. Nothing
  // to do where it is there.
  virtual Status Map() = 0;
  // Waits for the device, and gives the memory back to the driver.
  virtual void Unmap() = 0;
};

// A moment in a stream of a device: passed when what the stream was given before it is done.
class StreamMoment {
 public:
  virtual ~StreamMoment() = default;
};

// Work that goes on beside a thread's own, on another thread and on a stream of its own, so that
// the device's work for one does not wait for that of the other.
class SideStream {
 public:
  virtual ~SideStream() = default;
  // On the other thread: runs `work`, whose tensor operations go to the stream. The first of them
  // comes after what the stream of the thread that made this had been given then; when this returns
  // the last of them is done.
  virtual void Run(const std::function<void()>& work) = 0;
};

class CudaModule {
 public:
  virtual ~CudaModule() = default;
  // The number of usable devices, or kUnavailable with what the driver says.
  virtual Result<int> DeviceCount() const = 0;
  virtual Result<GpuFacts> Describe(int index) const = 0;
  virtual void SetDevice(int index) = 0;
  // NCCL group; see MakeProcessGroup, and MakeLinkGroup with `given_up`.
  virtual std::unique_ptr<ProcessGroup> MakeGroup(const Store& store, int global_rank,
                                                  const GroupOptions& options,
                                                  const std::atomic<bool>* given_up) = 0;
  // Ok, or the operation of a group that hung or failed, since when every group of the process but
  // links is aborted: whatever the host reads of a device after that may be of no value. To be
  // asked after the host has waited for a device, and before it believes what it read.
  virtual Status Lost() const = 0;
  // Waits for all work of the current device.
  virtual void Synchronize() = 0;
  // Waits for what this thread's stream was given.
  virtual void SynchronizeStream() = 0;
  virtual CudaMemory Memory(int index) const = 0;
  // Gives back to the driver what the allocator keeps for later tensors.
  virtual void ReleaseCached() = 0;
  // A range of so many bytes at least, without memory. kUnavailable where the device cannot.
  virtual Result<std::unique_ptr<DeviceRange>> Reserve(int index, size_t bytes) = 0;

  // Keel's own kernels, or null where the module was built without nvcc.
  virtual const gpu::KernelTable* Kernels() const = 0;
  // The stream that tensor operations of this thread go to.
  virtual gpu::Stream CurrentStream() const = 0;
  virtual std::unique_ptr<SideStream> MakeSideStream() = 0;

  // Runs `work` twice: first as it is, so that libraries have made what they make at a first call,
  // and what it throws then is thrown; then as a recording of what it gives the device. Tensors
  // that it makes there live for as long as the recording or they themselves do, and have values
  // once it is replayed. It must not copy from or to the host, nor wait for the device: an error,
  // after which the device can be used as before. `beside`, if not null: a recording whose memory
  // for passing results this one may share, as the two are never replayed at a time.
  virtual Result<std::unique_ptr<Recording>> Record(const std::function<void()>& work,
                                                    const Recording* beside) = 0;

  // In the current stream. An error is told by SecondsBetween.
  virtual std::shared_ptr<const StreamMoment> Mark() = 0;
  // Seconds from one moment to a later one. Waits for the later one.
  virtual Result<double> SecondsBetween(const StreamMoment& from, const StreamMoment& to) = 0;

  // Pinned host memory, for copies that run beside compute: every page is there, and holds zeros.
  virtual Result<void*> AllocatePinned(size_t bytes) = 0;
  virtual void FreePinned(void* memory) = 0;
  // Copies on a side stream that first waits for what the current stream has been given. The ticket
  // is waited for on the host with WaitCopy, on any thread; tickets complete in order. WaitCopy
  // returns the first failure of any copy since one last began with none under way: what copies
  // beside it were to bring is not trusted either. Where groups are lost, so are the copies that
  // had not ended by then.
  virtual int64_t CopyToHost(void* host, const void* device, size_t bytes) = 0;
  virtual int64_t CopyToDevice(void* device, const void* host, size_t bytes) = 0;
  virtual Status WaitCopy(int64_t ticket) = 0;
  // What the current stream is given from here on comes after the copy; the host does not wait, and
  // hears of a failure where it does.
  virtual void HoldStreamFor(int64_t ticket) = 0;
};

// Loads keel_cuda once a process, from beside the program. kUnavailable when the build has none.
Result<CudaModule*> LoadCudaModule();

}  // namespace keel::parallel
