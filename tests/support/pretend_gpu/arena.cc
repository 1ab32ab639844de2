#include "tests/support/pretend_gpu/arena.h"

#include <execinfo.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <stdexcept>

namespace keel::testing::pretend {

namespace {

constexpr size_t kTotal = size_t{512} << 20;
constexpr size_t kAddresses = 4 * kTotal;  // of which some may have no memory
constexpr size_t kAlignment = 512;
constexpr size_t kPage = 4096;

struct sigaction former_action;

bool Holds(const void* memory);

void ReportTouch(int number, siginfo_t* info, void* context) {
  const char* const word =
      OnDevice(info->si_addr) ? "pretend GPU: the host touched memory of the device:\n"
      : Holds(info->si_addr)  ? "pretend GPU: the device touched addresses without memory:\n"
                              : nullptr;
  if (word != nullptr) {
    (void)!write(STDERR_FILENO, word, std::strlen(word));
    void* frames[48];
    backtrace_symbols_fd(frames, backtrace(frames, 48), STDERR_FILENO);
  }
  if ((former_action.sa_flags & SA_SIGINFO) != 0 && former_action.sa_sigaction != nullptr) {
    former_action.sa_sigaction(number, info, context);
    return;
  }
  // The access is made again, and ends the process as it would have without this.
  signal(SIGSEGV, SIG_DFL);
}

class Arena {
 public:
  Arena() : seen_(Addresses(PROT_NONE)), held_(Addresses(PROT_READ | PROT_WRITE)) {
    free_[0] = kAddresses;
    struct sigaction action {};
    action.sa_sigaction = ReportTouch;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, &former_action);
  }

  void* Allocate(size_t bytes, int device) {
    const std::lock_guard lock(mutex_);
    const size_t size = RoundUp(std::max<size_t>(bytes, 1), kAlignment);
    if (!Fill(size)) return nullptr;
    const size_t begin = Take(size, kAlignment, device);
    std::memset(held_ + begin, 0xff, size);
    return seen_ + begin;
  }
  void Free(void* memory) {
    const std::lock_guard lock(mutex_);
    const size_t begin = BeginOf(memory);
    const size_t size = taken_.at(begin).size;
    usage_.allocated -= static_cast<int64_t>(size);
    std::memset(held_ + begin, 0xff, size);
    PutBack(begin);
  }

  void* Reserve(size_t bytes, int device) {
    const std::lock_guard lock(mutex_);
    const size_t size = RoundUp(bytes, kPage);
    const size_t begin = Take(size, kPage, device);
    mprotect(held_ + begin, size, PROT_NONE);
    return seen_ + begin;
  }
  void Unreserve(void* range) {
    const std::lock_guard lock(mutex_);
    const size_t begin = BeginOf(range);
    mprotect(held_ + begin, taken_.at(begin).size, PROT_READ | PROT_WRITE);
    PutBack(begin);
  }
  bool Map(void* range) {
    const std::lock_guard lock(mutex_);
    const size_t begin = BeginOf(range);
    const size_t size = taken_.at(begin).size;
    if (!Fill(size)) return false;
    mprotect(held_ + begin, size, PROT_READ | PROT_WRITE);
    std::memset(held_ + begin, 0xff, size);
    return true;
  }
  void Unmap(void* range) {
    const std::lock_guard lock(mutex_);
    const size_t begin = BeginOf(range);
    usage_.allocated -= static_cast<int64_t>(taken_.at(begin).size);
    mprotect(held_ + begin, taken_.at(begin).size, PROT_NONE);
  }

  int DeviceOf(const void* memory) {
    const auto at = static_cast<size_t>(static_cast<const std::byte*>(memory) - seen_);
    const std::lock_guard lock(mutex_);
    const auto behind = taken_.upper_bound(at);
    if (behind == taken_.begin()) return -1;
    const auto& [begin, range] = *std::prev(behind);
    return at < begin + range.size ? range.device : -1;
  }

  bool Has(const void* memory) const {
    return memory >= seen_ && memory < static_cast<const void*>(seen_ + kAddresses);
  }
  bool Holds(const void* memory) const {
    return memory >= held_ && memory < static_cast<const void*>(held_ + kAddresses);
  }
  void* Behind(const void* memory) const {
    return held_ + (static_cast<const std::byte*>(memory) - seen_);
  }
  Usage usage() {
    const std::lock_guard lock(mutex_);
    Usage usage = usage_;
    usage.total = kTotal;
    return usage;
  }

 private:
  static std::byte* Addresses(int rights) {
    void* const memory =
        mmap(nullptr, kAddresses, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("pretend GPU: no address space");
    return static_cast<std::byte*>(memory);
  }
  static size_t RoundUp(size_t n, size_t to) { return (n + to - 1) / to * to; }

  size_t BeginOf(void* memory) const {
    const auto begin = static_cast<size_t>(static_cast<std::byte*>(memory) - seen_);
    if (!taken_.contains(begin)) std::abort();  // freed twice, or never given
    return begin;
  }

  bool Fill(size_t size) {
    if (usage_.allocated + static_cast<int64_t>(size) > static_cast<int64_t>(kTotal)) return false;
    usage_.allocated += static_cast<int64_t>(size);
    usage_.peak = std::max(usage_.peak, usage_.allocated);
    return true;
  }

  size_t Take(size_t size, size_t alignment, int device) {
    for (const auto& range : free_) {
      const auto [first, length] = range;
      const size_t begin = RoundUp(first, alignment);
      if (begin + size > first + length) continue;
      free_.erase(first);
      if (begin > first) free_[first] = begin - first;
      if (first + length > begin + size) free_[begin + size] = first + length - begin - size;
      taken_[begin] = {size, device};
      return begin;
    }
    throw std::runtime_error("pretend GPU: no addresses left");
  }

  void PutBack(size_t begin) {
    auto range = free_.emplace(begin, taken_.at(begin).size).first;
    taken_.erase(begin);
    if (const auto next = std::next(range);
        next != free_.end() && range->first + range->second == next->first) {
      range->second += next->second;
      free_.erase(next);
    }
    if (range == free_.begin()) return;
    if (const auto last = std::prev(range); last->first + last->second == range->first) {
      last->second += range->second;
      free_.erase(range);
    }
  }

  std::byte* const seen_;
  std::byte* const held_;
  std::mutex mutex_;
  struct Taken {
    size_t size = 0;
    int device = 0;
  };
  std::map<size_t, size_t> free_;  // begin, size
  std::map<size_t, Taken> taken_;  // by begin
  Usage usage_;
};

Arena& TheArena() {
  // Never destroyed: tensors may outlive whatever is.
  static Arena& arena = *new Arena;
  return arena;
}

bool Holds(const void* memory) { return TheArena().Holds(memory); }

struct PinnedMemory {
  std::mutex mutex;
  std::map<std::byte*, size_t> sizes;  // by where it begins
};

PinnedMemory& Pinned() {
  static PinnedMemory& pinned = *new PinnedMemory;  // as above
  return pinned;
}

}  // namespace

void* Allocate(size_t bytes, int device) { return TheArena().Allocate(bytes, device); }
void Free(void* memory) { TheArena().Free(memory); }
void* Reserve(size_t bytes, int device) { return TheArena().Reserve(bytes, device); }
void Unreserve(void* range) { TheArena().Unreserve(range); }
bool Map(void* range) { return TheArena().Map(range); }
void Unmap(void* range) { TheArena().Unmap(range); }
bool OnDevice(const void* memory) { return TheArena().Has(memory); }
int DeviceOf(const void* memory) { return OnDevice(memory) ? TheArena().DeviceOf(memory) : -1; }
void* Behind(const void* memory) { return memory == nullptr ? nullptr : TheArena().Behind(memory); }
Usage UsageNow() { return TheArena().usage(); }

void* AllocatePinned(size_t bytes) {
  const size_t size = (bytes + 4095) / 4096 * 4096;
  void* const memory = std::aligned_alloc(4096, size);
  const std::lock_guard lock(Pinned().mutex);
  if (memory != nullptr) Pinned().sizes[static_cast<std::byte*>(memory)] = size;
  return memory;
}

void FreePinned(void* memory) {
  {
    const std::lock_guard lock(Pinned().mutex);
    Pinned().sizes.erase(static_cast<std::byte*>(memory));
  }
  std::free(memory);
}

bool IsPinned(const void* memory) {
  auto* const at = static_cast<std::byte*>(const_cast<void*>(memory));
  const std::lock_guard lock(Pinned().mutex);
  const auto behind = Pinned().sizes.upper_bound(at);
  return behind != Pinned().sizes.begin() &&
         at < std::prev(behind)->first + std::prev(behind)->second;
}

}  // namespace keel::testing::pretend
