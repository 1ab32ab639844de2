// Blocks that ranks hand on in memory that they share: each arrives, and stays while it is read.
#include "checkpoint/load/block_ring.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "tests/checkpoint/support/test_support.h"

namespace keel::checkpoint {
namespace {

using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

constexpr int64_t kBlock = 4096;
constexpr std::chrono::milliseconds kDeadline{20'000};

std::unique_ptr<BlockRing> MakeRing(PeerChannel& channel, int64_t slots) {
  return ValueOrThrow(BlockRing::Make(channel, true, slots, kBlock, kDeadline));
}

// Many blocks through few slots, numbered in no order: every one arrives as it was published, and
// none is overwritten while it is read.
TEST(BlockRing, BlocksArriveThroughFewSlots) {
  constexpr int kWorld = 3;
  constexpr int64_t kCount = 500;
  const auto number_of = [](int64_t n) { return n * 7 % kCount + (int64_t{1} << 40); };
  const auto byte_of = [](int from, int64_t block) {
    return static_cast<std::byte>(block * 3 + from);
  };
  LocalChannelHub hub(kWorld);
  std::atomic<int> done{0};
  std::atomic<bool> failed{false};  // ends all ranks
  OnThreads(kWorld, [&](int rank) {
    const int64_t slots = 1 + rank;
    const auto ring = MakeRing(hub.rank(rank), slots);
    std::vector<int64_t> next(kWorld, 0);
    for (bool more = true; more && !failed;) {
      const int64_t published = ring->published();
      more = published < kCount;
      if (std::byte* const slot = more ? ValueOrThrow(ring->Acquire()) : nullptr) {
        const int64_t block = number_of(published);
        std::memset(slot, static_cast<int>(byte_of(rank, block)), static_cast<size_t>(kBlock));
        ring->Publish(slot, block);
      }
      int64_t taken = ring->published();
      for (int peer = 0; peer < kWorld; ++peer) {
        if (peer != rank) taken = std::min(taken, ring->TakenBy(peer));
      }
      const auto expect = [&](bool holds, const char* what, int64_t entry, int peer) {
        if (holds || failed.exchange(true)) return;
        ADD_FAILURE() << what << ", entry " << entry << " of rank " << peer;
      };
      expect(ring->published() - taken <= slots, "more than there are slots", published, rank);
      for (int peer = 0; peer < kWorld; ++peer) {
        int64_t& mine = next[static_cast<size_t>(peer)];
        if (peer == rank || mine == kCount) continue;
        more = true;
        if (ring->Published(peer) <= mine) continue;
        const BlockRing::Entry entry = ring->EntryOf(peer, mine);
        expect(entry.block == number_of(mine), "another block", mine, peer);
        const std::byte wanted = byte_of(peer, number_of(mine));
        expect(std::all_of(entry.bytes.begin(), entry.bytes.end(),
                           [&](std::byte b) { return b == wanted; }),
               "other bytes", mine, peer);
        ring->Take(peer, ++mine);
      }
      std::this_thread::yield();
    }
    for (++done; done < kWorld;) std::this_thread::yield();
  });
}

// Who keeps up with what is read finds it in the same memory every time, which is still cached.
TEST(BlockRing, TheSlotThatWasFreedLastIsUsedFirst) {
  LocalChannelHub hub(2);
  std::atomic<int> ready{0};
  const auto meet = [&](int times) {
    for (++ready; ready < 2 * times;) std::this_thread::yield();
  };
  OnThreads(2, [&](int rank) {
    const auto ring = MakeRing(hub.rank(rank), 3);
    if (rank == 1) {  // takes what rank 0 says
      int times = 0;
      for (const int64_t taken : {0, 1, 2, 3, 4, 6, 7}) {
        ring->Take(0, taken);
        meet(++times);
        meet(++times);
      }
      return;
    }
    std::vector<std::byte*> slots;
    const auto place = [&] {
      std::byte* const slot = ValueOrThrow(ring->Acquire());
      if (slot == nullptr) return false;
      ring->Publish(slot, static_cast<int64_t>(slots.size()));
      slots.push_back(slot);
      return true;
    };
    int times = 0;
    const auto after_take = [&](const auto& then) {
      meet(++times);
      then();
      meet(++times);
    };
    // 1. One at a time: one slot.
    for (int n = 0; n < 4; ++n) after_take([&] { EXPECT_TRUE(place()); });
    EXPECT_EQ(std::set<std::byte*>(slots.begin(), slots.end()).size(), 1U);
    // 2. None is taken: all slots, and then no more.
    after_take([&] {
      for (int n = 0; n < 3; ++n) EXPECT_TRUE(place());
      EXPECT_FALSE(place());
    });
    EXPECT_EQ(std::set<std::byte*>(slots.end() - 3, slots.end()).size(), 3U);
    // 3. Of two that are freed, the later one first; the third stays where it is.
    after_take([&] {
      EXPECT_TRUE(place());
      EXPECT_TRUE(place());
      EXPECT_FALSE(place());
    });
    ASSERT_EQ(slots.size(), 9U);
    EXPECT_EQ(slots[7], slots[5]);
    EXPECT_EQ(slots[8], slots[4]);
    after_take([&] { EXPECT_TRUE(place()); });
    EXPECT_EQ(slots.back(), slots[6]);
  });
}

// The table of entries takes pages of its own when there are many slots.
TEST(BlockRing, RanksMayHaveManySlotsAndEachItsOwnNumber) {
  constexpr int kWorld = 3;
  const std::vector<int64_t> slots = {2049, 0, 490};
  LocalChannelHub hub(kWorld);
  std::atomic<int> written{0}, read{0};
  OnThreads(kWorld, [&](int rank) {
    const int64_t mine = slots[static_cast<size_t>(rank)];
    const auto ring = MakeRing(hub.rank(rank), mine);
    for (int64_t n = 0; n < mine; ++n) {
      std::byte* const slot = ValueOrThrow(ring->Acquire());
      ASSERT_NE(slot, nullptr);
      std::memset(slot, static_cast<int>(n % 251), static_cast<size_t>(kBlock));
      ring->Publish(slot, n);
    }
    EXPECT_EQ(ValueOrThrow(ring->Acquire()), nullptr);
    for (++written; written < kWorld;) std::this_thread::yield();
    for (int peer = 0; peer < kWorld; ++peer) {
      if (peer == rank) continue;
      EXPECT_EQ(ring->slots(peer), slots[static_cast<size_t>(peer)]);
      ASSERT_EQ(ring->Published(peer), slots[static_cast<size_t>(peer)]);
      for (int64_t n = 0; n < ring->slots(peer); ++n) {
        const BlockRing::Entry entry = ring->EntryOf(peer, n);
        ASSERT_EQ(entry.block, n);
        ASSERT_EQ(entry.bytes.front(), static_cast<std::byte>(n % 251));
        ASSERT_EQ(entry.bytes.back(), static_cast<std::byte>(n % 251));
      }
    }
    for (++read; read < kWorld;) std::this_thread::yield();
  });
}

}  // namespace
}  // namespace keel::checkpoint
