// keel_cuda: the implementation of CudaModule. Built as a shared object wherever the CUDA toolkit
// is found; see cuda_module.h.

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "parallel/cuda/nccl_group.h"
#include "parallel/cuda_module.h"

namespace keel::parallel {

namespace {

Status FromCuda(cudaError_t error, const char* operation) {
  if (error == cudaSuccess) return Status::Ok();
  return Status(
      StatusCode::kUnavailable,
      fmt::format("{}: {} ({})", operation, cudaGetErrorString(error), cudaGetErrorName(error)));
}

class Module final : public CudaModule {
 public:
  Result<int> DeviceCount() const override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
      int driver = 0;
      int runtime = 0;
      cudaDriverGetVersion(&driver);
      cudaRuntimeGetVersion(&runtime);
      return Status(
          StatusCode::kUnavailable,
          fmt::format(
              "no usable NVIDIA GPU: {} (CUDA runtime {}.{}, driver {}); install a driver, or set "
              "trainer.device to cpu",
              cudaGetErrorString(error), runtime / 1000, runtime / 10 % 100,
              driver == 0 ? std::string("none")
                          : fmt::format("{}.{}", driver / 1000, driver / 10 % 100)));
    }
    if (count == 0)
      return Status(
          StatusCode::kUnavailable,
          "no NVIDIA GPU is visible; look at CUDA_VISIBLE_DEVICES, or set trainer.device to cpu");
    return count;
  }

  void SetDevice(int index) override {
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
    device_ = static_cast<c10::DeviceIndex>(index);
  }

  std::string DeviceName(int index) const override {
    cudaDeviceProp properties{};
    return cudaGetDeviceProperties(&properties, index) == cudaSuccess ? properties.name : "";
  }

  std::unique_ptr<ProcessGroup> MakeGroup(const Store& store, int global_rank,
                                          const GroupOptions& options) override {
    return MakeNcclGroup(store, global_rank, options);
  }

  void Synchronize() override { c10::cuda::device_synchronize(); }

  CudaMemory Memory(int index) const override {
    const auto stats =
        c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(index));
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    CudaMemory memory;
    memory.allocated = stats.allocated_bytes[all].current;
    memory.peak_allocated = stats.allocated_bytes[all].peak;
    memory.reserved = stats.reserved_bytes[all].current;
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    if (cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess)
      memory.total = static_cast<int64_t>(total_bytes);
    return memory;
  }

  Result<void*> AllocatePinned(size_t bytes) override {
    void* memory = nullptr;
    KEEL_RETURN_IF_ERROR(
        FromCuda(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable), "cudaHostAlloc"));
    return memory;
  }
  void FreePinned(void* memory) override { cudaFreeHost(memory); }

  int64_t CopyToHost(void* host, const void* device, size_t bytes) override {
    return Copy(host, device, bytes, cudaMemcpyDeviceToHost);
  }
  int64_t CopyToDevice(void* device, const void* host, size_t bytes) override {
    return Copy(device, host, bytes, cudaMemcpyHostToDevice);
  }

  Status WaitCopy(int64_t ticket) override {
    Event event;  // kept by each thread that waits for it
    {
      const std::lock_guard lock(mutex_);
      if (ticket < first_ticket_) return failed_;
      event = events_[static_cast<size_t>(ticket - first_ticket_)];
    }
    // A thread that has not chosen a device would make a context on the first one.
    const c10::cuda::CUDAGuard guard(device_);
    const Status status =
        FromCuda(cudaEventSynchronize(event.get()), "copy between host and device");
    const std::lock_guard lock(mutex_);
    if (failed_.ok()) failed_ = status;
    while (first_ticket_ <= ticket && !events_.empty()) {
      events_.pop_front();
      ++first_ticket_;
    }
    return failed_;
  }

 private:
  using Event = std::shared_ptr<CUevent_st>;

  // The copy stream waits for what the current stream has been given so far; the compute goes on.
  int64_t Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    const std::lock_guard lock(mutex_);
    if (!stream_) stream_ = c10::cuda::getStreamFromPool(false);
    const auto check = [this](cudaError_t error, const char* operation) {
      if (failed_.ok()) failed_ = FromCuda(error, operation);
    };
    cudaEvent_t before = nullptr;
    check(cudaEventCreateWithFlags(&before, cudaEventDisableTiming), "cudaEventCreate");
    check(cudaEventRecord(before, c10::cuda::getCurrentCUDAStream().stream()), "cudaEventRecord");
    check(cudaStreamWaitEvent(stream_->stream(), before, 0), "cudaStreamWaitEvent");
    check(cudaEventDestroy(before), "cudaEventDestroy");
    check(cudaMemcpyAsync(to, from, bytes, kind, stream_->stream()), "cudaMemcpyAsync");
    cudaEvent_t after = nullptr;
    check(cudaEventCreateWithFlags(&after, cudaEventDisableTiming | cudaEventBlockingSync),
          "cudaEventCreate");
    check(cudaEventRecord(after, stream_->stream()), "cudaEventRecord");
    events_.emplace_back(after, cudaEventDestroy);
    return first_ticket_ + static_cast<int64_t>(events_.size()) - 1;
  }

  std::mutex mutex_;
  std::atomic<c10::DeviceIndex> device_{0};
  std::optional<c10::cuda::CUDAStream> stream_;
  std::deque<Event> events_;  // of tickets first_ticket_ onwards
  int64_t first_ticket_ = 0;
  Status failed_;
};

}  // namespace

}  // namespace keel::parallel

extern "C" __attribute__((visibility("default"))) keel::parallel::CudaModule* keel_cuda_module() {
  static keel::parallel::Module module;
  return &module;
}
