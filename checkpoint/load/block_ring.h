// BlockRing: blocks of chunks on their way from the rank that reads them to its near peers.
//
// A rank puts each block that it hands on into a slot of its window (shared_window.h), and
// publishes it in the next entry of a table, under a number that both know; near peers copy what
// they need straight out of it. Progress is a few counters in the same memory, so that no message
// is sent. A slot is used again when all near peers have taken its entry; of the free ones that
// which was freed last, since it is most likely still in the caches. Thread-safe, but that one
// thread at a time may acquire or publish, and one may take from a given peer.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/base/peer_channel.h"
#include "checkpoint/load/shared_window.h"
#include "common/status.h"

namespace keel::checkpoint {

class BlockRing {
 public:
  // What fits into an entry: a slot below the one, and a block's number below the other.
  static constexpr int64_t kMostSlots = int64_t{1} << 16;
  static constexpr int64_t kMostBlocks = int64_t{1} << 48;

  // Collective (SharedWindow::Make, and its errors). `slots`: of this rank's, at most kMostSlots;
  // each is of `block_bytes`, which all ranks give alike: otherwise kInternal.
  static Result<std::unique_ptr<BlockRing>> Make(PeerChannel& channel, bool share, int64_t slots,
                                                 int64_t block_bytes,
                                                 std::chrono::milliseconds deadline);

  bool near(int peer) const { return window_->near(peer); }
  bool Alive(int peer) const { return window_->Alive(peer); }
  int64_t slots(int rank) const { return slots_[static_cast<size_t>(rank)]; }

  // 1. This rank's own. A free slot, or null while peers need them all; kUnavailable when there is
  // no memory for it.
  Result<std::byte*> Acquire();
  void Publish(const std::byte* slot, int64_t block);  // an acquired one
  int64_t published() const { return published_; }
  int64_t TakenBy(int peer) const;  // how many of the first entries a near peer needs no more

  // 2. Those of a near peer: how many it has published, and what entry `n` of these is. What it
  // says is up to that peer, but for the bytes, which always lie within its window.
  struct Entry {
    int64_t block = 0;
    std::span<const std::byte> bytes;  // a whole slot
  };
  int64_t Published(int peer) const;
  Entry EntryOf(int peer, int64_t n) const;
  void Take(int peer, int64_t count);  // the first `count` are not needed any more

  // 3. Signs of life. A rank that stops hands on, and takes, nothing more.
  void Beat();
  uint64_t BeatOf(int peer) const;
  void Stop();
  bool Stopped(int peer) const;

 private:
  // Of a rank, at the start of its window; then come the counters of what it has taken, by peer,
  // its entries (that of number n at n modulo the slots), and the slots themselves. It alone
  // writes them.
  struct Counters {
    alignas(64) std::atomic<uint64_t> published;
    alignas(64) std::atomic<uint64_t> beats;
    alignas(64) std::atomic<uint64_t> stopped;
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free, "processes share them");

  BlockRing(int world, int64_t block_bytes) : world_(world), block_bytes_(block_bytes) {}
  int64_t HeadBytes(int64_t slots) const;
  const Counters& CountersOf(int peer) const;
  std::byte* SlotAt(int64_t place) const;
  int64_t TakenByAll() const;

  const int world_;
  const int64_t block_bytes_;
  std::vector<int64_t> slots_;  // by rank
  int rank_ = 0;
  std::unique_ptr<SharedWindow> window_;
  Counters* mine_ = nullptr;
  std::atomic<uint64_t>* taken_ = nullptr;
  std::atomic<uint64_t>* entries_ = nullptr;
  int64_t published_ = 0;
  int64_t freed_ = 0;           // entries whose slots were given back
  std::vector<int64_t> free_;   // slots, the one that was freed last at the end
  std::vector<char> prepared_;  // by slot: its memory was taken
};

}  // namespace keel::checkpoint
