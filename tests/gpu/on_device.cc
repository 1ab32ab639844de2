// The kernels of a GPU for the tests of their bodies. KEEL_GPU_BODIES=device has tensors of the
// host lie in pinned memory, which a GPU reads and writes where it is, so that a test needs no
// copies.

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "parallel/groups/cuda_module.h"
#include "parallel/store/store.h"
#include "tests/gpu/bodies.h"

namespace keel::gpu {

namespace {

// What keel_cuda takes from its host, stores and statuses, has to be in this program.
[[maybe_unused, gnu::used]] const auto kShared = &parallel::Store::WithPrefix;

parallel::CudaModule* module = nullptr;

// Hands out parts of one piece of pinned memory, each of a power of two bytes.
class PinnedAllocator final : public c10::Allocator {
 public:
  explicit PinnedAllocator(void* memory)
      : next_(static_cast<std::byte*>(memory)), end_(next_ + kBytes) {}

  static constexpr size_t kBytes = size_t{512} << 20;

  c10::DataPtr allocate(size_t bytes) override {
    const size_t size = std::bit_ceil(std::max<size_t>(bytes, 512));
    const std::lock_guard lock(mutex_);
    std::vector<std::byte*>& free = free_[size];
    std::byte* part = nullptr;
    if (!free.empty()) {
      part = free.back();
      free.pop_back();
    } else if (size <= static_cast<size_t>(end_ - next_)) {
      part = next_;
      next_ += size;
    }
    if (part == nullptr) throw std::runtime_error("the tests' pinned memory is full");
    sizes_[part] = size;
    return {part, part, Free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return Free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

  static PinnedAllocator* the_one;

 private:
  static void Free(void* memory) {
    auto* const part = static_cast<std::byte*>(memory);
    const std::lock_guard lock(the_one->mutex_);
    the_one->free_[the_one->sizes_.at(part)].push_back(part);
  }

  std::mutex mutex_;
  std::byte* next_;
  std::byte* end_;
  std::map<size_t, std::vector<std::byte*>> free_;
  std::map<std::byte*, size_t> sizes_;
};
PinnedAllocator* PinnedAllocator::the_one = nullptr;

class OnDevice final : public ::testing::Environment {
 public:
  void SetUp() override {
    const char* const where = std::getenv("KEEL_GPU_BODIES");
    if (where == nullptr || std::string(where) != "device") return;
    const auto loaded = parallel::LoadCudaModule();
    const Result<int> count = loaded.ok() ? (*loaded)->DeviceCount() : Result<int>(loaded.status());
    if (!count.ok()) GTEST_SKIP() << "no usable GPU: " << count.status().message();
    if ((*loaded)->Kernels() == nullptr) GTEST_SKIP() << "no usable GPU: built without nvcc";
    (*loaded)->SetDevice(0);
    const Result<void*> memory = (*loaded)->AllocatePinned(PinnedAllocator::kBytes);
    ASSERT_TRUE(memory.ok()) << memory.status().ToString();
    // Neither goes before the process does: tensors may outlive the tests.
    PinnedAllocator::the_one = new PinnedAllocator(*memory);
    c10::SetCPUAllocator(PinnedAllocator::the_one, /*priority=*/255);
    module = *loaded;
  }
};
[[maybe_unused]] const auto* const kOnDevice = ::testing::AddGlobalTestEnvironment(new OnDevice);

template <auto Member, typename Args>
void RunAndWait(const Args& args, Stream) {
  (module->Kernels()->*Member)(args, module->CurrentStream());
  module->Synchronize();
}

template <auto Member, typename Args>
void Fill(KernelTable& table, Kernel<Args> KernelTable::*) {
  table.*Member = RunAndWait<Member, Args>;
}

template <auto... Members>
KernelTable TableOf() {
  KernelTable table;
  (Fill<Members>(table, Members), ...);
  return table;
}

}  // namespace

const KernelTable* DeviceTable() {
  using T = KernelTable;
  static const T table =
      TableOf<&T::rms_norm, &T::rms_norm_backward, &T::gated_unit, &T::gated_unit_backward,
              &T::rotate, &T::paged_attention, &T::adamw, &T::sum_of_squares, &T::token_statistics,
              &T::token_gradient, &T::add_to_rows, &T::tensor_digest, &T::token_choice>();
  static_assert(sizeof(T) == 13 * sizeof(void*), "a kernel is missing here");
  return module != nullptr ? &table : nullptr;
}

}  // namespace keel::gpu
