// keel_cuda: the implementation of CudaModule, a shared object of its own; see cuda_module.h.

#include <ATen/Parallel.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "common/memory/page_memory.h"
#include "common/terminal.h"
#include "parallel/groups/cuda/device_range.h"
#include "parallel/groups/cuda/nccl_group.h"
#include "parallel/groups/cuda_module.h"
#include "parallel/groups/operation_watch.h"

namespace keel::parallel {

namespace {

Status FromCuda(cudaError_t error, const char* operation) {
  if (error == cudaSuccess) return Status::Ok();
  return Status(
      StatusCode::kUnavailable,
      fmt::format("{}: {} ({})", operation, cudaGetErrorString(error), cudaGetErrorName(error)));
}

std::string VersionText(int version) {
  return version == 0 ? "none" : fmt::format("{}.{}", version / 1000, version / 10 % 100);
}

// As nvidia-smi writes it.
std::string UuidText(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

class Graph final : public Recording {
 public:
  // Of what `work` gives the current stream, which must not be the default one.
  Status Capture(const std::function<void()>& work, const Graph* beside) {
    const auto in_words = [](const std::exception& e) {
      cudaGetLastError();  // else the next kernel would be told of it
      return Status(StatusCode::kUnavailable, fmt::format("CUDA graph: {}", e.what()));
    };
    Status status;
    pool_ = beside != nullptr ? beside->pool_ : at::cuda::graph_pool_handle();
    try {
      // Other threads copy and wait beside it, which is none of its business.
      graph_.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
      try {
        work();
      } catch (const std::exception& e) {
        status = in_words(e);
      }
      graph_.capture_end();
    } catch (const std::exception& e) {
      if (status.ok()) status = in_words(e);
      GiveUpPool();
    }
    return status;
  }
  void Replay() override { graph_.replay(); }

 private:
  // A recording that cannot be ended leaves the allocator in it: every tensor of this stream would
  // go on into its pool, and nothing of the cache could be given back.
  void GiveUpPool() {
    const auto device = c10::cuda::current_device();
    const auto end = [](const auto& of_one) {
      try {
        of_one();
      } catch (const std::exception&) {
        // It had ended that itself.
      }
    };
    end([&] {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool_);
      c10::cuda::CUDACachingAllocator::releasePool(device, pool_);
    });
    end([&] {
      at::HostAllocator* const pinned = at::getHostAllocator(at::kCUDA);
      pinned->end_allocate_to_pool(pool_);
      pinned->release_pool(pool_);
    });
  }

  at::cuda::CUDAGraph graph_;
  c10::MempoolId_t pool_ = {0, 0};
};

class Moment final : public StreamMoment {
 public:
  Moment() {
    status_ = FromCuda(cudaEventCreate(&event_), "cudaEventCreate");
    if (status_.ok())
      status_ = FromCuda(cudaEventRecord(event_, c10::cuda::getCurrentCUDAStream().stream()),
                         "cudaEventRecord");
  }
  ~Moment() override {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  Moment(const Moment&) = delete;
  Moment& operator=(const Moment&) = delete;
  cudaEvent_t event() const { return event_; }
  const Status& status() const { return status_; }

 private:
  cudaEvent_t event_ = nullptr;
  Status status_;
};

// A stream that nothing else of the process uses. Those of PyTorch's pool go round, and are NCCL's,
// too.
c10::cuda::CUDAStream OwnStream() {
  cudaStream_t stream = nullptr;
  const Status made =
      FromCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  if (!made.ok()) throw Error(made);
  return c10::cuda::getStreamFromExternal(stream, c10::cuda::current_device());
}

// Streams that come back: PyTorch keeps memory by the stream that it was first used on.
class OwnStreams {
 public:
  c10::cuda::CUDAStream Take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return OwnStream();
    const c10::cuda::CUDAStream stream = free_.back();
    free_.pop_back();
    return stream;
  }
  void GiveBack(c10::cuda::CUDAStream stream) {
    const std::lock_guard lock(mutex_);
    free_.push_back(stream);
  }

 private:
  std::mutex mutex_;
  std::vector<c10::cuda::CUDAStream> free_;
};

class Side final : public SideStream {
 public:
  explicit Side(OwnStreams& streams) : streams_(streams), stream_(streams.Take()) {
    before_.record(c10::cuda::getCurrentCUDAStream());
  }
  ~Side() override { streams_.GiveBack(stream_); }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;
  void Run(const std::function<void()>& work) override {
    const c10::cuda::CUDAStreamGuard guard(stream_);  // and the device of it
    before_.block(stream_);
    work();
    stream_.synchronize();
  }

 private:
  OwnStreams& streams_;
  const c10::cuda::CUDAStream stream_;
  at::cuda::CUDAEvent before_;
};

class Module final : public CudaModule {
 public:
  Module() {
    watch_.set_at_start([this] { c10::cuda::set_device(device_); });
    watch_.set_before_abort([this] { KeepWhatHasLanded(); });
    watch_.set_abort_together(
        [this](const OperationWatch::Aborts& aborts) { AbortOrLeave(aborts); });
  }

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
              "no usable NVIDIA GPU: {} (CUDA runtime {}, driver {}); install a driver, or set "
              "trainer.device to cpu",
              cudaGetErrorString(error), VersionText(runtime), VersionText(driver)));
    }
    if (count == 0)
      return Status(
          StatusCode::kUnavailable,
          "no NVIDIA GPU is visible; look at CUDA_VISIBLE_DEVICES, or set trainer.device to cpu");
    return count;
  }

  Result<GpuFacts> Describe(int index) const override {
    cudaDeviceProp properties{};
    KEEL_RETURN_IF_ERROR(
        FromCuda(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties"));
    std::array<char, 32> bus{};
    KEEL_RETURN_IF_ERROR(
        FromCuda(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), index),
                 "cudaDeviceGetPCIBusId"));
    int driver = 0;
    int runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    GpuFacts facts;
    facts.name = properties.name;
    facts.uuid = UuidText(properties.uuid);
    facts.bus = bus.data();
    for (char& c : facts.bus) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    facts.capability = properties.major * 10 + properties.minor;
    facts.memory = static_cast<int64_t>(properties.totalGlobalMem);
    facts.runtime = VersionText(runtime);
    facts.driver = VersionText(driver);
    return facts;
  }

  void SetDevice(int index) override {
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
    device_ = static_cast<c10::DeviceIndex>(index);
  }

  std::unique_ptr<ProcessGroup> MakeGroup(const Store& store, int global_rank,
                                          const GroupOptions& options,
                                          const std::atomic<bool>* given_up) override {
    device_ = static_cast<c10::DeviceIndex>(options.device_index);
    return MakeNcclGroup(store, global_rank, options, given_up, watch_);
  }

  Status Lost() const override { return watch_.failure(); }

  void Synchronize() override { c10::cuda::device_synchronize(); }
  void SynchronizeStream() override { c10::cuda::getCurrentCUDAStream().synchronize(); }

  CudaMemory Memory(int index) const override {
    // PyTorch knows of no device until its first tensor, and throws where it is asked before.
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    const auto stats =
        c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(index));
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    CudaMemory memory;
    {
      const std::lock_guard lock(mapped_mutex_);
      memory.allocated = stats.allocated_bytes[all].current + mapped_;
      memory.peak_allocated = std::max(peak_, stats.allocated_bytes[all].peak + mapped_);
      memory.reserved = stats.reserved_bytes[all].current + mapped_;
    }
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
    if (cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess) {
      memory.free = static_cast<int64_t>(free_bytes);
      memory.total = static_cast<int64_t>(total_bytes);
    }
    return memory;
  }

  void ReleaseCached() override { c10::cuda::CUDACachingAllocator::emptyCache(); }

  Result<std::unique_ptr<DeviceRange>> Reserve(int index, size_t bytes) override {
    return ReserveDeviceRange(index, bytes, [this, index](int64_t change) {
      // The most so far is of tensors and ranges together, of which PyTorch knows the former alone.
      const auto device = static_cast<c10::DeviceIndex>(index);
      const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device);
      const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
      c10::cuda::CUDACachingAllocator::resetPeakStats(device);
      const std::lock_guard lock(mapped_mutex_);
      peak_ = std::max(peak_, stats.allocated_bytes[all].peak + mapped_);
      mapped_ += change;
    });
  }

  const gpu::KernelTable* Kernels() const override {
#ifdef KEEL_KERNELS
    return &gpu::DeviceKernelTable();
#else
    return nullptr;
#endif
  }
  gpu::Stream CurrentStream() const override { return c10::cuda::getCurrentCUDAStream().stream(); }
  std::unique_ptr<SideStream> MakeSideStream() override { return std::make_unique<Side>(sides_); }

  Result<std::unique_ptr<Recording>> Record(const std::function<void()>& work,
                                            const Recording* beside) override {
    if (!recording_stream_) recording_stream_ = OwnStream();
    c10::cuda::getCurrentCUDAStream().synchronize();
    const c10::cuda::CUDAStreamGuard guard(*recording_stream_);
    work();
    recording_stream_->synchronize();
    auto graph = std::make_unique<Graph>();
    KEEL_RETURN_IF_ERROR(graph->Capture(work, static_cast<const Graph*>(beside)));
    return std::unique_ptr<Recording>(std::move(graph));
  }

  std::shared_ptr<const StreamMoment> Mark() override { return std::make_shared<Moment>(); }

  Result<double> SecondsBetween(const StreamMoment& from, const StreamMoment& to) override {
    const auto& first = static_cast<const Moment&>(from);
    const auto& second = static_cast<const Moment&>(to);
    KEEL_RETURN_IF_ERROR(first.status());
    KEEL_RETURN_IF_ERROR(second.status());
    KEEL_RETURN_IF_ERROR(FromCuda(cudaEventSynchronize(second.event()), "cudaEventSynchronize"));
    float milliseconds = 0;
    KEEL_RETURN_IF_ERROR(
        FromCuda(cudaEventElapsedTime(&milliseconds, first.event(), second.event()),
                 "cudaEventElapsedTime"));
    return static_cast<double>(milliseconds) / 1000;
  }

  Result<void*> AllocatePinned(size_t bytes) override {
    // Huge pages that are there before they are registered: cudaHostAlloc takes five times as long
    // (NVIDIA/cudf#23457).
    PageMemory memory = AllocatePages(static_cast<int64_t>(bytes));
    if (memory == nullptr)
      return Status(StatusCode::kUnavailable, fmt::format("no memory for {} bytes", bytes));
    TouchPages(memory.get(), static_cast<int64_t>(bytes), at::get_num_threads());
    KEEL_RETURN_IF_ERROR(FromCuda(
        cudaHostRegister(memory.get(), bytes, cudaHostRegisterPortable | cudaHostRegisterMapped),
        "cudaHostRegister"));
    return static_cast<void*>(memory.release());
  }
  void FreePinned(void* memory) override {
    const PageMemory pages(static_cast<std::byte*>(memory));
    cudaHostUnregister(memory);
  }

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
      if (ticket < first_ticket_) return FailureOf(ticket);
      event = events_[static_cast<size_t>(ticket - first_ticket_)];
    }
    // A thread that has not chosen a device would make a context on the first one.
    const c10::cuda::CUDAGuard guard(device_);
    const Status status =
        FromCuda(cudaEventSynchronize(event.get()), "copy between host and device");
    const Status lost = watch_.failure();
    const std::lock_guard lock(mutex_);
    // What was not here when the groups were aborted may be of an operation that was cut off.
    if (!lost.ok() && ticket > landed_) return lost;
    if (failed_.ok()) failed_ = status;
    while (first_ticket_ <= ticket && !events_.empty()) {
      events_.pop_front();
      ++first_ticket_;
    }
    return FailureOf(ticket);
  }

  void HoldStreamFor(int64_t ticket) override {
    const std::lock_guard lock(mutex_);
    if (ticket < first_ticket_) return;
    const Event& event = events_[static_cast<size_t>(ticket - first_ticket_)];
    const Status status =
        FromCuda(cudaStreamWaitEvent(c10::cuda::getCurrentCUDAStream().stream(), event.get(), 0),
                 "cudaStreamWaitEvent");
    if (failed_.ok()) failed_ = status;
  }

 private:
  using Event = std::shared_ptr<CUevent_st>;
  static void DestroyEvent(cudaEvent_t event) {
    if (event != nullptr) cudaEventDestroy(event);
  }

  // Under mutex_.
  Status FailureOf(int64_t ticket) const {
    return ticket < failed_from_ ? before_failed_ : failed_;
  }

  // A driver that does not come back would leave every host in its wait, and nobody would hear of
  // what has failed.
  void AbortOrLeave(const OperationWatch::Aborts& aborts) {
    if (AbortNcclTogether(aborts, device_)) return;
    const Status why = watch_.failure();
    WriteStderr(
        fmt::format("keel: {}; its groups did not end within {} s, so that this rank leaves "
                    "as it is\n",
                    why.message(), kNcclAbortPatience.count()));
    std::_Exit(ExitCodeFor(why.code()));
  }

  // Copies end in order.
  void KeepWhatHasLanded() {
    const c10::cuda::CUDAGuard guard(device_);
    const std::lock_guard lock(mutex_);
    landed_ = first_ticket_ - 1;
    for (const Event& event : events_) {
      if (cudaEventQuery(event.get()) != cudaSuccess) break;
      ++landed_;
    }
  }

  // The copy stream waits for what the current stream has been given so far; the compute goes on.
  int64_t Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    const std::lock_guard lock(mutex_);
    if (!stream_) stream_ = OwnStream();
    if (events_.empty() && !failed_.ok()) {
      before_failed_ = std::exchange(failed_, Status::Ok());
      failed_from_ = first_ticket_;
    }
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
    events_.emplace_back(after, DestroyEvent);
    return first_ticket_ + static_cast<int64_t>(events_.size()) - 1;
  }

  std::mutex mutex_;
  std::atomic<c10::DeviceIndex> device_{0};
  std::optional<c10::cuda::CUDAStream> stream_;
  std::optional<c10::cuda::CUDAStream> recording_stream_;
  std::deque<Event> events_;  // of tickets first_ticket_ onwards
  int64_t first_ticket_ = 0;
  int64_t landed_ = -1;   // the last ticket that had ended when the groups were aborted
  Status failed_;         // of tickets failed_from_ onwards
  Status before_failed_;  // of those before
  int64_t failed_from_ = 0;
  OwnStreams sides_;
  mutable std::mutex mapped_mutex_;
  int64_t mapped_ = 0;    // by ranges
  int64_t peak_ = 0;      // of tensors and ranges, until the last change of what is mapped
  OperationWatch watch_;  // last: its thread uses the above
};

}  // namespace

}  // namespace keel::parallel

extern "C" __attribute__((visibility("default"))) keel::parallel::CudaModule* keel_cuda_module() {
  static keel::parallel::Module module;
  return &module;
}
