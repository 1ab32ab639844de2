// A pretend GPU for tests: the CudaModule of a machine that has none. KEEL_CUDA_MODULE names it.
//
// What a GPU would forgive never and a host always, fails here: a host that reads device memory, a
// result that is used before its copy was waited for, a kernel that is given a host's address.

#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>

#include "parallel/groups/cuda_module.h"
#include "parallel/groups/host_staged_group.h"
#include "parallel/groups/link_group.h"
#include "tests/support/pretend_gpu/arena.h"
#include "tests/support/pretend_gpu/copy_engine.h"
#include "tests/support/pretend_gpu/devices.h"
#include "tests/support/pretend_gpu/kernels.h"
#include "tests/support/pretend_gpu/recording.h"

namespace keel::testing::pretend {

namespace {

using Clock = std::chrono::steady_clock;

struct Moment final : parallel::StreamMoment {
  const Clock::time_point at = Clock::now();
  const int64_t waits = Waits();
};

class Range final : public parallel::DeviceRange {
 public:
  Range(int device, size_t bytes) : address_(pretend::Reserve(bytes, device)) {}
  ~Range() override {
    Unmap();
    Unreserve(address_);
  }
  void* address() const override { return address_; }
  Status Map() override {
    if (!there_ && !pretend::Map(address_))
      return Status(StatusCode::kUnavailable, "pretend GPU: out of memory");
    there_ = true;
    return Status::Ok();
  }
  void Unmap() override {
    if (there_) pretend::Unmap(address_);
    there_ = false;
  }

 private:
  void* const address_;
  bool there_ = false;
};

// Operations are done where they are asked for, whichever the thread.
class Side final : public parallel::SideStream {
 public:
  void Run(const std::function<void()>& work) override {
    SetThreadsDevice(device_);
    work();
  }

 private:
  const int device_ = ThreadsDevice();
};

class Module final : public parallel::CudaModule {
 public:
  Result<int> DeviceCount() const override { return Devices(); }
  Result<parallel::GpuFacts> Describe(int index) const override {
    parallel::GpuFacts facts;
    facts.name = "pretend GPU";
    facts.uuid = fmt::format("GPU-pretend-{}", index);
    facts.bus = fmt::format("0000:{:02x}:00.0", index);
    facts.capability = 90;
    facts.memory = UsageNow().total;
    facts.runtime = facts.driver = "13.0";
    return facts;
  }
  void SetDevice(int index) override { SetThreadsDevice(index); }
  std::unique_ptr<parallel::ProcessGroup> MakeGroup(const parallel::Store& store, int global_rank,
                                                    const parallel::GroupOptions& options,
                                                    const std::atomic<bool>* given_up) override {
    parallel::GroupOptions of_hosts = options;
    of_hosts.cuda = false;
    return parallel::ByWayOfHosts(parallel::MakeLinkGroup(store, global_rank, of_hosts, given_up));
  }
  Status Lost() const override { return Status::Ok(); }
  void Synchronize() override { NotWhileRecording("a wait"); }
  void SynchronizeStream() override { NotWhileRecording("a wait"); }
  parallel::CudaMemory Memory(int) const override {
    const Usage usage = UsageNow();
    parallel::CudaMemory memory;
    memory.allocated = memory.reserved = usage.allocated;
    memory.peak_allocated = usage.peak;
    memory.total = usage.total;
    memory.free = usage.total - usage.allocated;
    return memory;
  }
  void ReleaseCached() override {}
  Result<std::unique_ptr<parallel::DeviceRange>> Reserve(int index, size_t bytes) override {
    const char* const way = std::getenv("KEEL_PRETEND_RANGES");
    if (way != nullptr && std::string(way) == "0")
      return Status(StatusCode::kUnavailable, "pretend GPU: no virtual memory management");
    return std::unique_ptr<parallel::DeviceRange>(std::make_unique<Range>(index, bytes));
  }

  const gpu::KernelTable* Kernels() const override {
    const char* const way = std::getenv("KEEL_PRETEND_KERNELS");
    return way != nullptr && std::string(way) == "0" ? nullptr : &pretend::Kernels();
  }
  gpu::Stream CurrentStream() const override { return nullptr; }
  std::unique_ptr<parallel::SideStream> MakeSideStream() override {
    return std::make_unique<Side>();
  }
  Result<std::unique_ptr<parallel::Recording>> Record(const std::function<void()>& work,
                                                      const parallel::Recording*) override {
    return pretend::Record(work);
  }

  std::shared_ptr<const parallel::StreamMoment> Mark() override {
    return std::make_shared<Moment>();
  }
  Result<double> SecondsBetween(const parallel::StreamMoment& from,
                                const parallel::StreamMoment& to) override {
    const auto& second = static_cast<const Moment&>(to);
    if (second.waits == Waits()) CountWait();  // nothing else has waited for the device since
    return std::chrono::duration<double>(second.at - static_cast<const Moment&>(from).at).count();
  }

  Result<void*> AllocatePinned(size_t bytes) override {
    void* const memory = pretend::AllocatePinned(bytes);
    if (memory == nullptr) return Status::FromErrno(ENOMEM, "pin", "memory");
    return memory;
  }
  void FreePinned(void* memory) override {
    copies_.WaitForAll();
    pretend::FreePinned(memory);
  }
  int64_t CopyToHost(void* host, const void* device, size_t bytes) override {
    NotWhileRecording("a copy to the host");
    return copies_.Copy(host, device, bytes);
  }
  int64_t CopyToDevice(void* device, const void* host, size_t bytes) override {
    NotWhileRecording("a copy from the host");
    return copies_.Copy(device, host, bytes);
  }
  Status WaitCopy(int64_t ticket) override {
    copies_.Wait(ticket);
    return Status::Ok();
  }
  // Operations are done where they are asked for, so what comes after this comes after the copy.
  void HoldStreamFor(int64_t ticket) override { copies_.Wait(ticket); }

 private:
  CopyEngine copies_{std::chrono::microseconds(500)};
};

}  // namespace

int Devices() {
  const char* const count = std::getenv("KEEL_PRETEND_GPUS");
  return count != nullptr ? std::atoi(count) : 8;
}

}  // namespace keel::testing::pretend

extern "C" __attribute__((visibility("default"))) keel::parallel::CudaModule* keel_cuda_module() {
  // Never destroyed: threads may still copy when the process ends.
  static auto& module = *new keel::testing::pretend::Module;
  return &module;
}

extern "C" __attribute__((visibility("default"))) int64_t keel_pretend_gpu_waits() {
  return keel::testing::pretend::Waits();
}
