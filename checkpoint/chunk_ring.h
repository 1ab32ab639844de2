// ChunkRing: verified chunks on their way from the rank that has read them to its near peers.
//
// A rank numbers the chunks that it hands on from 0, and puts each into a slot of its window
// (shared_window.h); near peers copy what they need straight out of it. Progress is a few counters
// in the same memory, so that no message is sent. A peer takes nothing that was not published. Of
// the free slots the one that was freed last is taken, since it is most likely still in the caches.
// Thread-safe, but that one thread at a time may place or publish, and one may take from a given
// peer.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/peer_channel.h"
#include "checkpoint/shared_window.h"
#include "common/status.h"

namespace keel::checkpoint {

class ChunkRing {
 public:
  // Collective (SharedWindow::Make). `slots`: of this rank's.
  static Result<std::unique_ptr<ChunkRing>> Make(PeerChannel& channel, bool share, int64_t slots,
                                                 int64_t chunk_bytes,
                                                 std::chrono::milliseconds deadline);

  bool near(int peer) const { return window_->near(peer); }
  bool Alive(int peer) const { return window_->Alive(peer); }
  // How many chunks a rank keeps at a time; of this rank and near ones.
  int64_t slots(int rank) const { return slots_[static_cast<size_t>(rank)]; }

  // 1. This rank's own. Chunks are placed in order: false while all slots hold one of those from
  // `taken` on, which are still needed. A placed chunk stays where it lies while it is needed.
  bool Place(int64_t chunk, int64_t taken);
  // Before a placed chunk is written: takes the memory of its slot. kUnavailable when there is
  // none: then the slot must not be touched.
  Status Prepare(int64_t chunk);
  Status PrepareAll();  // of all slots
  std::byte* slot(int64_t chunk) const;
  int64_t TakenBy(int peer) const;  // how many of the first a near peer needs no more
  void Publish(int64_t count);      // the first `count` chunks are there, verified

  // 2. Those of a near peer: how many it has published, and where they lie. Chunks that this rank
  // does not need count as taken.
  int64_t Published(int peer) const;
  std::span<const std::byte> slot_of(int peer, int64_t chunk) const;
  void Take(int peer, int64_t count);  // the first `count` are not needed any more

  // 3. Signs of life. A rank that stops hands on, and takes, nothing more.
  void Beat();
  uint64_t BeatOf(int peer) const;
  void Stop();
  bool Stopped(int peer) const;

 private:
  // Of a rank, at the start of its window; then come the counters of what it has taken, by peer,
  // the slots of its chunks (that of chunk n at n modulo their number), and the slots themselves.
  // It alone writes them.
  struct Counters {
    alignas(64) std::atomic<uint64_t> published;
    alignas(64) std::atomic<uint64_t> beats;
    alignas(64) std::atomic<uint64_t> stopped;
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free, "processes share them");

  ChunkRing(int world, int64_t chunk_bytes) : world_(world), chunk_bytes_(chunk_bytes) {}
  int64_t HeadBytes(int64_t slots) const;
  Status PrepareSlot(size_t place);
  const Counters& CountersOf(int peer) const;

  const int world_;
  const int64_t chunk_bytes_;
  std::vector<int64_t> slots_;  // by rank
  int rank_ = 0;
  std::unique_ptr<SharedWindow> window_;
  Counters* mine_ = nullptr;
  std::atomic<uint64_t>* taken_ = nullptr;
  std::atomic<uint64_t>* places_ = nullptr;
  std::vector<uint64_t> free_;  // slots, the one that was freed last at the end
  int64_t freed_ = 0;           // chunks whose slots were given back
  std::vector<char> prepared_;  // by slot
};

}  // namespace keel::checkpoint
