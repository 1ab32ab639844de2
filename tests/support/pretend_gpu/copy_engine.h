// The copies of a pretend GPU: they go on a thread of their own, one after the other, and late.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

namespace keel::testing::pretend {

class CopyEngine {
 public:
  // Each copy begins only so long after it was asked for, so that who does not wait for it reads
  // what was there before.
  explicit CopyEngine(std::chrono::microseconds delay);
  ~CopyEngine();

  // A ticket. One of `to` and `from` is of the device.
  int64_t Copy(void* to, const void* from, size_t bytes);
  void Wait(int64_t ticket);
  void WaitForAll();

 private:
  struct Order {
    void* to;
    const void* from;
    size_t bytes;
    std::chrono::steady_clock::time_point begin;
  };
  void Work();

  const std::chrono::microseconds delay_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Order> queue_;
  int64_t asked_ = 0, done_ = 0;
  bool ending_ = false;
  std::thread thread_;  // last: uses the above
};

}  // namespace keel::testing::pretend
