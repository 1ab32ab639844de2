#include "tests/support/pretend_gpu/copy_engine.h"

#include <cstring>

#include "tests/support/pretend_gpu/arena.h"

namespace keel::testing::pretend {

CopyEngine::CopyEngine(std::chrono::microseconds delay)
    : delay_(delay), thread_([this] { Work(); }) {}

CopyEngine::~CopyEngine() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

int64_t CopyEngine::Copy(void* to, const void* from, size_t bytes) {
  const std::lock_guard lock(mutex_);
  queue_.push_back({to, from, bytes, std::chrono::steady_clock::now() + delay_});
  changed_.notify_all();
  return asked_++;
}

void CopyEngine::Wait(int64_t ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ > ticket; });
}

void CopyEngine::WaitForAll() {
  std::unique_lock lock(mutex_);
  const int64_t all = asked_;
  changed_.wait(lock, [&] { return done_ >= all; });
}

void CopyEngine::Work() {
  const auto held = [](const void* memory) {
    return OnDevice(memory) ? Behind(memory) : const_cast<void*>(memory);
  };
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const Order order = queue_.front();
    queue_.pop_front();
    lock.unlock();
    std::this_thread::sleep_until(order.begin);
    std::memcpy(held(order.to), held(order.from), order.bytes);
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace keel::testing::pretend
