// Every allocation of a save fails in turn, the staging memory among them. The save fails with a
// status, on every rank; no thread dies of it, nothing is lost, and the next save succeeds.
//
// One kind is always granted: the JSON library cannot do without. It allocates while it destroys
// and compares, where an exception ends the program.
//
// The operators that this program replaces are its own, not the library's: they fail for armed
// threads alone, so that the test itself and GoogleTest have memory.
#include <dlfcn.h>
#include <execinfo.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <string_view>

#include "checkpoint/save/snapshot_writer.h"
#include "tests/checkpoint/support/crash_support.h"
#include "tests/support/nightly.h"

namespace {

// Allocations that are still granted; negative: all.
std::atomic<int64_t> granted{-1};
std::atomic<int64_t> counted{0};
std::atomic<bool> counting{false};

bool WithinJson() {
  void* frames[24];
  const int depth = backtrace(frames, 24);
  for (int i = 0; i < depth; ++i) {
    Dl_info info{};
    if (dladdr(frames[i], &info) == 0 || info.dli_sname == nullptr) continue;
    const std::string_view name(info.dli_sname);
    for (const std::string_view start :
         {"_ZN8nlohmann", "_ZNK8nlohmann", "_ZNSt6vectorIN8nlohmann", "_ZNKSt6vectorIN8nlohmann"}) {
      if (name.starts_with(start)) return true;
    }
  }
  return false;
}

bool Granted() {
  if (counting.load(std::memory_order_relaxed)) counted.fetch_add(1, std::memory_order_relaxed);
  if (granted.load(std::memory_order_relaxed) < 0) return true;
  // Exactly one fails: the one that finds none left.
  return granted.fetch_sub(1, std::memory_order_relaxed) != 0 || WithinJson();
}

}  // namespace

void* operator new(size_t bytes) {
  void* const memory = Granted() ? std::malloc(bytes == 0 ? 1 : bytes) : nullptr;
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  void* memory = nullptr;
  return Granted() && posix_memalign(&memory, alignment, bytes) == 0 ? memory : nullptr;
}
#endif
void* operator new[](size_t bytes) { return operator new(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return Granted() ? std::malloc(bytes == 0 ? 1 : bytes) : nullptr;
}
void* operator new[](size_t bytes, const std::nothrow_t& none) noexcept {
  return operator new(bytes, none);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace keel::checkpoint {
namespace {

using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

// How many allocations `work` makes.
template <typename Work>
int64_t Allocations(const Work& work) {
  counted = 0;
  counting = true;
  work();
  counting = false;
  return counted;
}

class OutOfMemory : public ::testing::TestWithParam<Scenario> {};

TEST_P(OutOfMemory, AtEveryAllocationOfASave) {
  void* frame = nullptr;
  (void)backtrace(&frame, 1);  // loads what it needs while there is memory
  CrashJob job(GetParam());
  const auto clean = job.before().Clone();
  const int64_t allocations = Allocations([&] { ASSERT_TRUE(job.Save(*clean).ok()); });
  ASSERT_GT(allocations, 500);
  int64_t failed = 0;
  // In a run of ordinary length every seventh one, beginning with another at each scenario.
  const int64_t stride = keel::testing::Nightly() ? 1 : 7;
  for (int64_t n = std::ssize(GetParam().name) % stride; n < allocations; n += stride) {
    const auto disk = job.before().Clone();
    std::unique_ptr<SimFileSystem> between;
    CrashJob::TwoSaves saves;
    granted = n;
    try {
      saves = job.SaveTwice(*disk, [&] {
        granted = -1;
        between = disk->Clone();
      });
    } catch (const std::exception&) {
      // The test's own memory, or that of a rank before it had a save: a program would end here.
    }
    granted = -1;
    const std::string where = "allocation " + std::to_string(n);
    job.ExpectOldOrNew(between != nullptr ? *between : *disk, saves.first.ok() && between, where);
    if (between != nullptr) {
      failed += saves.first.ok() ? 0 : 1;
      EXPECT_EQ(saves.second.ToString(), "ok") << where;
    }
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(failed, 10);
}

// A pool that could not grow has the slots that it had, all of memory that is there.
TEST(OutOfMemoryPool, GrowsAsAWholeOrNotAtAll) {
  void* frame = nullptr;
  (void)backtrace(&frame, 1);
  SimFileSystem disk;
  constexpr int64_t kChunk = 4096;
  std::vector<std::byte> values(20 * kChunk);
  FileToWrite file;
  file.path = "file";
  file.pieces.push_back(
      {Dims{static_cast<int64_t>(values.size())}, {values.data(), Dims{1}}, 1, false});
  const std::vector<FileToWrite> files = {file};
  const int64_t allocations = Allocations([&] {
    SnapshotWriter writer(disk, IoBackend::kBuffered, kChunk);
    ThrowIfError(writer.Reserve(files, 5 * kChunk));
    ThrowIfError(writer.Reserve(files, std::nullopt));
  });
  int refused = 0;
  for (int64_t n = 0; n < allocations; ++n) {
    SnapshotWriter writer(disk, IoBackend::kBuffered, kChunk);
    ThrowIfError(writer.Reserve(files, 5 * kChunk));
    const int64_t before = writer.pool_bytes();
    granted = n;
    bool grown = false;
    try {
      grown = writer.Reserve(files, std::nullopt).ok();
    } catch (const std::bad_alloc&) {
    }
    granted = -1;
    EXPECT_EQ(writer.pool_bytes(), grown ? 20 * kChunk : before) << "allocation " << n;
    refused += grown ? 0 : 1;
  }
  EXPECT_GT(refused, 1);
}

INSTANTIATE_TEST_SUITE_P(Scenarios, OutOfMemory,
                         ::testing::Values(Scenario{"blocking", 1, {10}, 20, 1},
                                           Scenario{"background", 1, {10}, 20, 1, true, true}),
                         NameOf);

}  // namespace
}  // namespace keel::checkpoint
