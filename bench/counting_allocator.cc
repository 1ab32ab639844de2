#include "bench/counting_allocator.h"

#include <c10/core/CPUAllocator.h>

#include <memory>
#include <utility>

namespace keel::bench {

// What was given out: the context of the pointer that the caller gets.
struct CountingAllocator::Block {
  c10::DataPtr data;
  int64_t bytes;
  CountingAllocator* owner;
};

CountingAllocator& CountingAllocator::Install() {
  auto made = std::make_unique<CountingAllocator>(c10::GetCPUAllocator());
  constexpr uint8_t kPriority = 100;  // above torch's own
  c10::SetCPUAllocator(made.get(), kPriority);
  return *made.release();
}

c10::DataPtr CountingAllocator::allocate(size_t bytes) {
  auto block = std::make_unique<Block>();
  block->data = inner_->allocate(bytes);
  block->bytes = static_cast<int64_t>(bytes);
  block->owner = this;
  void* const data = block->data.get();
  const c10::Device device = block->data.device();
  const int64_t total = now_.fetch_add(block->bytes) + block->bytes;
  int64_t most = peak_.load();
  while (total > most && !peak_.compare_exchange_weak(most, total)) {
  }
  return {data, block.release(), &Free, device};
}

void CountingAllocator::Free(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  block->owner->now_.fetch_sub(block->bytes);
}

void CountingAllocator::copy_data(void* to, const void* from, size_t bytes) const {
  default_copy_data(to, from, bytes);
}

}  // namespace keel::bench
