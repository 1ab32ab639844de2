// Memory that ranks share: who gets to see whose, and that nothing is left of it.
#include "checkpoint/load/shared_window.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "tests/checkpoint/support/test_support.h"

namespace keel::checkpoint {
namespace {

using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests
using std::chrono::milliseconds;

constexpr milliseconds kDeadline{20'000};

// A channel on which what arrives from some peers in the first call, their offers, is changed.
class Spoiling : public PeerChannel {
 public:
  using Spoil = std::function<void(int from, std::span<std::byte> offer)>;
  Spoiling(PeerChannel& real, Spoil spoil) : real_(real), spoil_(std::move(spoil)) {}
  int rank() const override { return real_.rank(); }
  int world() const override { return real_.world(); }
  Status Exchange(std::span<const Send> sends, std::span<const Receive> receives,
                  milliseconds deadline) override {
    const Status status = real_.Exchange(sends, receives, deadline);
    if (!std::exchange(first_, false)) return status;
    for (const Receive& one : receives) spoil_(one.peer, one.bytes);
    return status;
  }

 private:
  PeerChannel& real_;
  const Spoil spoil_;
  bool first_ = true;
};

// The offer on the wire: valid (4), pid (8), fd (4), bytes (8), nonce (16), host.
constexpr size_t kPid = 4, kFd = 12, kBytes = 16, kNonce = 24, kHost = 40;

template <typename T>
T Get(std::span<std::byte> offer, size_t at) {
  T value;
  std::memcpy(&value, offer.data() + at, sizeof value);
  return value;
}
template <typename T>
void Set(std::span<std::byte> offer, size_t at, T value) {
  std::memcpy(offer.data() + at, &value, sizeof value);
}

int OpenDescriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

int MappedWindows() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("memfd:keel-load") != std::string::npos ? 1 : 0;
  return count;
}

TEST(SharedWindow, RanksSeeEachOthersBytesAndNothingIsLeft) {
  const int descriptors = OpenDescriptors();
  for (const int world : {1, 2, 5}) {
    LocalChannelHub hub(world);
    std::atomic<int> written{0}, read{0};
    OnThreads(world, [&](int rank) {
      const auto bytes = static_cast<int64_t>(1000 + 5000 * rank);  // no whole pages
      const auto window =
          ValueOrThrow(SharedWindow::Make(hub.rank(rank), true, bytes, bytes, kDeadline));
      ASSERT_EQ(window->own().size(), static_cast<size_t>(bytes));
      EXPECT_FALSE(window->near(rank));
      EXPECT_TRUE(std::all_of(window->own().begin(), window->own().end(),
                              [](std::byte b) { return b == std::byte{0}; }));
      std::fill(window->own().begin(), window->own().end(), static_cast<std::byte>(rank + 1));
      for (++written; written < world;) std::this_thread::yield();
      for (int peer = 0; peer < world; ++peer) {
        if (peer == rank) continue;
        ASSERT_TRUE(window->near(peer));
        EXPECT_TRUE(window->Alive(peer));
        const std::span<const std::byte> theirs = window->of(peer);
        ASSERT_EQ(theirs.size(), static_cast<size_t>(1000 + 5000 * peer));
        EXPECT_TRUE(std::all_of(theirs.begin(), theirs.end(), [&](std::byte b) {
          return b == static_cast<std::byte>(peer + 1);
        }));
      }
      for (++read; read < world;) std::this_thread::yield();
    });
    EXPECT_EQ(OpenDescriptors(), descriptors);
    EXPECT_EQ(MappedWindows(), 0);
  }
}

int64_t ResidentPages(std::span<const std::byte> bytes) {
  std::vector<unsigned char> pages((bytes.size() + 4095) / 4096);
  EXPECT_EQ(::mincore(const_cast<std::byte*>(bytes.data()), bytes.size(), pages.data()), 0);
  return std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return (p & 1) != 0; });
}

// Much of a large window may never be needed.
TEST(SharedWindow, MemoryIsTakenWhenItIsAskedFor) {
  LocalChannelHub hub(1);
  constexpr int64_t kHugePage = 512;  // in pages: what a system may give for less
  const int64_t bytes = int64_t{64} << 20;
  const auto window = ValueOrThrow(SharedWindow::Make(hub.rank(0), true, bytes, 9'000, kDeadline));
  EXPECT_EQ(ResidentPages(window->own().first(9'000)), 3);
  EXPECT_LE(ResidentPages(window->own()), kHugePage);
  ASSERT_TRUE(window->Populate((32 << 20) + 10'000, 100'000).ok());
  EXPECT_EQ(ResidentPages(window->own().subspan((32 << 20) + 8'192, 102'400)), 25);
  EXPECT_LE(ResidentPages(window->own()), 2 * kHugePage);
  const Status none = window->Populate(0, int64_t{1} << 46);
  EXPECT_EQ(none.code(), StatusCode::kUnavailable);
  EXPECT_THAT(none.message(), ::testing::HasSubstr("no memory"));
}

TEST(SharedWindow, ARankThatDoesNotShareIsFarFromAll) {
  LocalChannelHub hub(3);
  OnThreads(3, [&](int rank) {
    const auto window =
        ValueOrThrow(SharedWindow::Make(hub.rank(rank), rank != 1, 10'000, 10'000, kDeadline));
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == rank) continue;
      EXPECT_EQ(window->near(peer), rank != 1 && peer != 1) << rank << peer;
    }
    // It has memory all the same.
    std::fill(window->own().begin(), window->own().end(), std::byte{7});
    EXPECT_EQ(window->own().size(), 10'000U);
  });
}

// One rank sees something else than was offered: the two are far from each other, on both sides,
// and near to the third.
TEST(SharedWindow, AnOfferThatDoesNotHoldMakesThePairFar) {
  const TempDir folder;
  const std::string file = folder / "file";
  WriteAll(file, std::string(4096 + 10'000, 'x'));
  const int regular = ::open(file.c_str(), O_RDWR);
  ASSERT_GE(regular, 0);
  // A copy of the window, nonce and all, that its owner could still cut short.
  const int unsealed = ::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(unsealed, 4096 + 10'000), 0);
  int pipes[2];
  ASSERT_EQ(::pipe(pipes), 0);
  using Offer = std::span<std::byte>;
  const auto write_nonce = [](int fd, Offer offer) {
    ASSERT_EQ(::pwrite(fd, offer.data() + kNonce, 16, 0), 16);
  };
  const std::vector<std::pair<const char*, std::function<void(Offer)>>> cases = {
      {"another nonce", [](Offer o) { o[kNonce + 3] ^= std::byte{1}; }},
      {"another nonce, second half", [](Offer o) { o[kNonce + 15] ^= std::byte{128}; }},
      {"another host", [](Offer o) { o[kHost + 2] ^= std::byte{1}; }},
      {"no host", [](Offer o) { std::fill(o.begin() + kHost, o.end(), std::byte{0}); }},
      {"a longer host", [](Offer o) { std::fill(o.begin() + kHost, o.end(), std::byte{'x'}); }},
      {"not valid", [](Offer o) { o[0] = std::byte{0}; }},
      {"more bytes", [](Offer o) { Set(o, kBytes, Get<int64_t>(o, kBytes) + 4096); }},
      {"fewer bytes", [](Offer o) { Set(o, kBytes, Get<int64_t>(o, kBytes) - 1); }},
      {"negative bytes", [](Offer o) { Set(o, kBytes, int64_t{-1}); }},
      {"far too many bytes", [](Offer o) { Set(o, kBytes, int64_t{1} << 62); }},
      {"a process that is not there", [](Offer o) { Set(o, kPid, int64_t{1} << 30); }},
      {"no process", [](Offer o) { Set(o, kPid, int64_t{0}); }},
      {"process -1", [](Offer o) { Set(o, kPid, int64_t{-1}); }},
      {"another process", [](Offer o) { Set(o, kPid, int64_t{1}); }},
      {"a descriptor that is not open", [](Offer o) { Set(o, kFd, int32_t{100'000}); }},
      {"descriptor -1", [](Offer o) { Set(o, kFd, int32_t{-1}); }},
      {"a pipe", [&](Offer o) { Set(o, kFd, int32_t{pipes[0]}); }},
      {"a file",
       [&](Offer o) {
         write_nonce(regular, o);
         Set(o, kFd, int32_t{regular});
       }},
      {"memory that can get shorter",
       [&](Offer o) {
         write_nonce(unsealed, o);
         Set(o, kFd, int32_t{unsealed});
       }},
  };
  const int descriptors = OpenDescriptors();
  for (const auto& [name, change] : cases) {
    SCOPED_TRACE(name);
    LocalChannelHub hub(3);
    std::atomic<int> compared{0};
    OnThreads(3, [&](int rank) {
      Spoiling channel(hub.rank(rank), [&](int from, Offer offer) {
        if (rank == 2 && from == 0) change(offer);
      });
      const auto window =
          ValueOrThrow(SharedWindow::Make(channel, true, 10'000, 10'000, kDeadline));
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == rank) continue;
        EXPECT_EQ(window->near(peer), rank + peer != 2) << rank << peer;
      }
      for (++compared; compared < 3;) std::this_thread::yield();
    });
    EXPECT_EQ(OpenDescriptors(), descriptors);
    EXPECT_EQ(MappedWindows(), 0);
  }
  for (const int fd : {regular, unsealed, pipes[0], pipes[1]}) ::close(fd);
}

// The same with an offer that is as it should be, so that what is above fails for its own reason.
TEST(SharedWindow, AnOfferThatHoldsMakesThePairNear) {
  const int sealed = ::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(sealed, 4096 + 10'000), 0);
  ASSERT_EQ(::fcntl(sealed, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  LocalChannelHub hub(2);
  OnThreads(2, [&](int rank) {
    Spoiling channel(hub.rank(rank), [&](int, std::span<std::byte> offer) {
      if (rank == 0) return;
      ASSERT_EQ(::pwrite(sealed, offer.data() + kNonce, 16, 0), 16);
      Set(offer, kFd, int32_t{sealed});
    });
    const auto window = ValueOrThrow(SharedWindow::Make(channel, true, 10'000, 10'000, kDeadline));
    EXPECT_TRUE(window->near(1 - rank));
  });
  ::close(sealed);
}

TEST(SharedWindow, NobodyElseWritesOrCutsAWindow) {
  LocalChannelHub hub(2);
  OnThreads(2, [&](int rank) {
    Spoiling channel(hub.rank(rank), [&](int, std::span<std::byte> offer) {
      // Another process would go the same way.
      const std::string path = "/proc/" + std::to_string(Get<int64_t>(offer, kPid)) + "/fd/" +
                               std::to_string(Get<int32_t>(offer, kFd));
      const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
      ASSERT_GE(fd, 0);
      EXPECT_EQ(::ftruncate(fd, 4096), -1);
      EXPECT_EQ(::ftruncate(fd, 1 << 20), -1);
      EXPECT_EQ(::pwrite(fd, "x", 1, 5000), -1);
      EXPECT_EQ(::mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
      ::close(fd);
    });
    const auto window = ValueOrThrow(SharedWindow::Make(channel, true, 10'000, 10'000, kDeadline));
    EXPECT_TRUE(window->near(1 - rank));
  });
}

TEST(SharedWindow, OffersOfAnyBytesAreRefusedOrHold) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 300; ++round) {
    LocalChannelHub hub(2);
    const uint64_t seed = random();
    OnThreads(2, [&](int rank) {
      Spoiling channel(hub.rank(rank), [&](int, std::span<std::byte> offer) {
        std::mt19937_64 bytes(seed);
        if (rank == 1) {
          for (uint64_t i = 0; i <= seed % 4; ++i)
            offer[bytes() % kHost] = static_cast<std::byte>(bytes());
        }
      });
      const auto window = ValueOrThrow(SharedWindow::Make(channel, true, 5'000, 5'000, kDeadline));
      if (!window->near(1 - rank)) return;
      EXPECT_EQ(window->of(1 - rank).size(), 5'000U);
    });
  }
  EXPECT_EQ(MappedWindows(), 0);
}

}  // namespace
}  // namespace keel::checkpoint
