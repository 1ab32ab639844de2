// CountingAllocator: torch's CPU allocator, and how many bytes it has given out, now and at most.
#pragma once

#include <c10/core/Allocator.h>

#include <atomic>
#include <cstdint>

namespace keel::bench {

// Thread-safe. Must outlive every tensor that was made through it.
class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {}

  // In the place of torch's for the rest of the process; never freed, since tensors may live on.
  static CountingAllocator& Install();

  c10::DataPtr allocate(size_t bytes) override;
  void copy_data(void* to, const void* from, size_t bytes) const override;

  int64_t now() const { return now_.load(); }
  // Most since the last call of Restart.
  int64_t peak() const { return peak_.load(); }
  void Restart() { peak_.store(now_.load()); }

 private:
  struct Block;
  static void Free(void* block);

  c10::Allocator* const inner_;
  std::atomic<int64_t> now_{0};
  std::atomic<int64_t> peak_{0};
};

}  // namespace keel::bench
