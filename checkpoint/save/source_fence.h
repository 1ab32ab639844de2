// SourceFence: which live memory a save in flight has still to read.
//
// The saver arms it with the ranges of a snapshot and releases each as soon as it is copied, or,
// where memory is read in place, written. The trainer calls Wait before it overwrites or frees
// memory. Thread-safe; without a save in flight a Wait costs one atomic load.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <vector>

namespace keel::checkpoint {

class SourceFence {
 public:
  struct Range {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
  };

  // Nothing may be held any more. A range is known by its position.
  void Arm(std::vector<Range> ranges);
  void Release(size_t range);
  void ReleaseAll();

  // Waits until nothing that overlaps [begin, begin + bytes) is held: true. False when for `stall`
  // no range was released; then some of it still is.
  bool Wait(const void* begin, size_t bytes, std::chrono::milliseconds stall);

  // Says whether something that overlaps is held. Does not wait.
  bool Holds(const void* begin, size_t bytes);

  bool idle() const { return held_count_.load(std::memory_order_acquire) == 0; }

 private:
  bool HoldsLocked(const std::byte* begin, const std::byte* end) const;
  std::atomic<size_t> held_count_{0};
  std::mutex mutex_;
  std::condition_variable released_;
  std::vector<Range> ranges_;
  std::vector<bool> held_;
  size_t releases_ = 0;
};

}  // namespace keel::checkpoint
