#include "trainer/engine/device_pages.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace keel::trainer {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

struct DevicePages::Mapping {
  explicit Mapping(size_t bytes) : size(bytes) {
    // Room to begin at a huge page.
    mapped = ::mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                    -1, 0);
    TORCH_CHECK(mapped != MAP_FAILED, "no memory for ", bytes, " bytes: ", std::strerror(errno));
    const auto address = reinterpret_cast<uintptr_t>(mapped);
    data = reinterpret_cast<void*>((address + kHugePage - 1) / kHugePage * kHugePage);
    (void)::madvise(data, size, MADV_HUGEPAGE);  // a hint: may fail
  }
  ~Mapping() { ::munmap(mapped, size + kHugePage); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  size_t size;
  void* mapped;
  void* data;
};

DevicePages::DevicePages(int64_t bytes)
    : mapping_(std::make_shared<Mapping>(static_cast<size_t>(bytes))) {}

at::DataPtr DevicePages::Lend() const {
  using Holder = std::shared_ptr<Mapping>;
  return {mapping_->data, new Holder(mapping_),
          [](void* holder) { const std::unique_ptr<Holder> dropped(static_cast<Holder*>(holder)); },
          c10::Device(c10::kCPU)};
}

void DevicePages::GiveUp() {
  // Where the kernel knows no MADV_FREE the pages stay, which costs memory alone.
  (void)::madvise(mapping_->data, mapping_->size, MADV_FREE);
}

}  // namespace keel::trainer
