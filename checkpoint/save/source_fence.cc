#include "checkpoint/save/source_fence.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace keel::checkpoint {

void SourceFence::Arm(std::vector<Range> ranges) {
  const std::lock_guard lock(mutex_);
  ranges_ = std::move(ranges);
  held_.assign(ranges_.size(), true);
  size_t held = ranges_.size();
  for (size_t i = 0; i < ranges_.size(); ++i) {
    if (ranges_[i].begin == ranges_[i].end) {
      held_[i] = false;
      --held;
    }
  }
  held_count_.store(held, std::memory_order_release);
}

void SourceFence::Release(size_t range) {
  {
    const std::lock_guard lock(mutex_);
    if (range >= held_.size() || !held_[range]) return;
    held_[range] = false;
    ++releases_;
    held_count_.fetch_sub(1, std::memory_order_acq_rel);
  }
  released_.notify_all();
}

void SourceFence::ReleaseAll() {
  {
    const std::lock_guard lock(mutex_);
    ranges_.clear();
    held_.clear();
    ++releases_;
    held_count_.store(0, std::memory_order_release);
  }
  released_.notify_all();
}

bool SourceFence::HoldsLocked(const std::byte* begin, const std::byte* end) const {
  const std::less<> before;
  for (size_t i = 0; i < ranges_.size(); ++i) {
    if (held_[i] && before(ranges_[i].begin, end) && before(begin, ranges_[i].end)) return true;
  }
  return false;
}

bool SourceFence::Holds(const void* begin, size_t bytes) {
  if (idle()) return false;
  const auto* const first = static_cast<const std::byte*>(begin);
  const std::lock_guard lock(mutex_);
  return HoldsLocked(first, first + bytes);
}

bool SourceFence::Wait(const void* begin, size_t bytes, std::chrono::milliseconds stall) {
  if (idle()) return true;
  const auto* const first = static_cast<const std::byte*>(begin);
  std::unique_lock lock(mutex_);
  while (HoldsLocked(first, first + bytes)) {
    const size_t seen = releases_;
    if (!released_.wait_for(lock, stall, [&] { return releases_ != seen; })) return false;
  }
  return true;
}

}  // namespace keel::checkpoint
