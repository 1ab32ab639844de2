// HugePages: an allocator for large tables that are read here and there, on huge pages where the
// kernel gives them: with small ones most reads miss the processor's table of pages, and the first
// touch of each is a fault of its own.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>

namespace keel {

template <typename T>
struct HugePages {
  using value_type = T;
  HugePages() = default;
  template <typename Other>
  HugePages(const HugePages<Other>&) {}  // NOLINT: containers convert allocators

  T* allocate(size_t count) {
    const size_t bytes = count * sizeof(T);
    void* memory = ::operator new(bytes, AlignmentOf(bytes));
    if (bytes >= kHugePage) (void)madvise(memory, bytes, MADV_HUGEPAGE);  // a hint: may fail
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t count) {
    ::operator delete(memory, AlignmentOf(count * sizeof(T)));
  }
  friend bool operator==(const HugePages&, const HugePages&) { return true; }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;
  static std::align_val_t AlignmentOf(size_t bytes) {
    return std::align_val_t{bytes >= kHugePage ? kHugePage : alignof(T)};
  }
};

}  // namespace keel
