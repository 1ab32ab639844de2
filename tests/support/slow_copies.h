// SlowCopies: a copy engine like a GPU's, on a CPU: copies between "device" and host go on a thread
// of their own, one after the other, and take their time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "parallel/groups/cuda_module.h"
#include "parallel/groups/process_group.h"

namespace keel::testing {

class SlowCopies : public parallel::CudaModule {
  struct Moment final : parallel::StreamMoment {
    int64_t number = 0;
  };

 public:
  // `delay`: of each copy.
  explicit SlowCopies(std::chrono::milliseconds delay = std::chrono::milliseconds(0))
      : delay_(delay), thread_([this] { Work(); }) {}
  ~SlowCopies() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // Copies that have ended.
  int64_t done() const {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  void FailFromNowOn() {
    const std::lock_guard lock(mutex_);
    failed_ = Status(StatusCode::kUnavailable, "the copy engine broke");
  }

  // What was pinned and is not free yet, and how often the cache was given back.
  int64_t pinned() const { return pinned_; }
  int64_t releases() const { return releases_; }
  void Lose(const Status& why) { lost_ = why; }

  const gpu::KernelTable* Kernels() const override { return nullptr; }
  gpu::Stream CurrentStream() const override { return nullptr; }
  std::unique_ptr<parallel::SideStream> MakeSideStream() override { return nullptr; }
  Result<std::unique_ptr<parallel::Recording>> Record(const std::function<void()>&,
                                                      const parallel::Recording*) override {
    return Status(StatusCode::kUnavailable, "a copy engine records nothing");
  }
  Result<int> DeviceCount() const override { return 1; }
  Result<parallel::GpuFacts> Describe(int) const override { return parallel::GpuFacts(); }
  Status Lost() const override { return lost_; }
  void ReleaseCached() override { ++releases_; }
  Result<std::unique_ptr<parallel::DeviceRange>> Reserve(int, size_t) override {
    return Status(StatusCode::kUnavailable, "a copy engine has no addresses");
  }
  std::shared_ptr<const parallel::StreamMoment> Mark() override {
    auto moment = std::make_shared<Moment>();
    moment->number = ++marks_;
    return moment;
  }
  Result<double> SecondsBetween(const parallel::StreamMoment& from,
                                const parallel::StreamMoment& to) override {
    return static_cast<double>(static_cast<const Moment&>(to).number -
                               static_cast<const Moment&>(from).number);
  }
  void SetDevice(int) override {}
  std::unique_ptr<parallel::ProcessGroup> MakeGroup(const parallel::Store&, int,
                                                    const parallel::GroupOptions&,
                                                    const std::atomic<bool>*) override {
    return nullptr;
  }
  void Synchronize() override {}
  void SynchronizeStream() override {}
  parallel::CudaMemory Memory(int) const override { return {}; }
  Result<void*> AllocatePinned(size_t bytes) override {
    ++pinned_;
    return std::malloc(bytes);
  }
  void FreePinned(void* memory) override {
    --pinned_;
    std::free(memory);
  }
  int64_t CopyToHost(void* host, const void* device, size_t bytes) override {
    return Add(host, device, bytes);
  }
  int64_t CopyToDevice(void* device, const void* host, size_t bytes) override {
    return Add(device, host, bytes);
  }
  Status WaitCopy(int64_t ticket) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ > ticket; });
    return failed_;
  }
  void HoldStreamFor(int64_t ticket) override {
    ++holds_;
    static_cast<void>(WaitCopy(ticket));  // its compute is the host's
  }
  int64_t holds() const { return holds_; }

 private:
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
  };

  int64_t Add(void* to, const void* from, size_t bytes) {
    const std::lock_guard lock(mutex_);
    queue_.push_back({to, from, bytes});
    changed_.notify_all();
    return added_++;
  }

  void Work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ending_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const Copy copy = queue_.front();
      queue_.pop_front();
      lock.unlock();
      std::this_thread::sleep_for(delay_);
      std::memcpy(copy.to, copy.from, copy.bytes);
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  const std::chrono::milliseconds delay_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Copy> queue_;
  int64_t pinned_ = 0, releases_ = 0, marks_ = 0, holds_ = 0;
  Status lost_;
  int64_t added_ = 0;
  int64_t done_ = 0;
  Status failed_;
  bool ending_ = false;
  std::thread thread_;  // last: uses all of the above
};

}  // namespace keel::testing
