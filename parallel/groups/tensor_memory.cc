#include "parallel/groups/tensor_memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "parallel/groups/cuda_module.h"

namespace keel::parallel {

class TensorMemory::Pages {
 public:
  Pages() = default;
  virtual ~Pages() = default;
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  // Where the pages are, which hold anything. Throws c10::Error when there are none.
  virtual void* Take() = 0;
  virtual void GiveUp() = 0;
};

namespace {

using Pages = TensorMemory::Pages;

class HostPages final : public Pages {
 public:
  explicit HostPages(size_t bytes) : size_(bytes) {
    // Room to begin at a huge page.
    mapped_ = ::mmap(nullptr, size_ + kHugePage, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(mapped_ != MAP_FAILED, "no memory for ", bytes, " bytes: ", std::strerror(errno));
    const auto address = reinterpret_cast<uintptr_t>(mapped_);
    data_ = reinterpret_cast<void*>((address + kHugePage - 1) / kHugePage * kHugePage);
    (void)::madvise(data_, size_, MADV_HUGEPAGE);  // a hint: may fail
  }
  ~HostPages() override { ::munmap(mapped_, size_ + kHugePage); }
  void* Take() override { return data_; }
  // Where the kernel knows no MADV_FREE the pages stay, which costs memory alone.
  void GiveUp() override { (void)::madvise(data_, size_, MADV_FREE); }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;

  size_t size_;
  void* mapped_;
  void* data_;
};

class DevicePages final : public Pages {
 public:
  explicit DevicePages(std::unique_ptr<DeviceRange> range) : range_(std::move(range)) {}
  void* Take() override {
    const Status mapped = range_->Map();
    TORCH_CHECK_WITH(OutOfMemoryError, mapped.ok(), mapped.message());
    return range_->address();
  }
  void GiveUp() override { range_->Unmap(); }

 private:
  std::unique_ptr<DeviceRange> range_;
};

// Null where the device maps no memory at an address of one's choice.
std::shared_ptr<Pages> PagesFor(const at::Tensor& tensor, int64_t bytes) {
  if (tensor.is_cpu()) {
    if (StorageOf(tensor)->allocator() != c10::GetCPUAllocator()) return nullptr;
    return std::make_shared<HostPages>(static_cast<size_t>(bytes));
  }
  Result<CudaModule*> module = LoadCudaModule();
  if (!module.ok()) return nullptr;
  Result<std::unique_ptr<DeviceRange>> range =
      (*module)->Reserve(tensor.device().index(), static_cast<size_t>(bytes));
  if (!range.ok()) return nullptr;
  return std::make_shared<DevicePages>(std::move(*range));
}

// The pages live as long as a storage has them.
at::DataPtr Lend(const std::shared_ptr<Pages>& pages, at::Device device) {
  using Holder = std::shared_ptr<Pages>;
  void* const memory = pages->Take();
  return {memory, new Holder(pages),
          [](void* holder) { const std::unique_ptr<Holder> dropped(static_cast<Holder*>(holder)); },
          device};
}

}  // namespace

TensorMemory::TensorMemory(at::Tensor tensor)
    : tensor_(std::move(tensor)), bytes_(static_cast<int64_t>(tensor_.nbytes())) {
  TORCH_CHECK(static_cast<int64_t>(StorageOf(tensor_)->nbytes()) == bytes_,
              "TensorMemory: a tensor that is not the whole of its storage");
}

void TensorMemory::Release() {
  c10::StorageImpl* const storage = StorageOf(tensor_);
  if (storage->nbytes() == 0) return;
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, storage->device()));
  storage->set_nbytes(size_t{0});
  if (pages_ != nullptr) pages_->GiveUp();
}

void TensorMemory::Restore() {
  if (there()) return;
  c10::StorageImpl* const storage = StorageOf(tensor_);
  if (pages_ == nullptr) pages_ = PagesFor(tensor_, bytes_);
  storage->set_data_ptr_noswap(pages_ != nullptr
                                   ? Lend(pages_, tensor_.device())
                                   : storage->allocator()->allocate(static_cast<size_t>(bytes_)));
  storage->set_nbytes(static_cast<size_t>(bytes_));
}

}  // namespace keel::parallel
