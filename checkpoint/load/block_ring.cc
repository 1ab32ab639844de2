#include "checkpoint/load/block_ring.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

namespace keel::checkpoint {
namespace {

using Counter = std::atomic<uint64_t>;

constexpr auto kCounter = static_cast<int64_t>(sizeof(Counter));
constexpr int kSlotBits = 16;  // of an entry: its slot below, its block above

template <typename T>
T* FieldAt(std::byte* base, int64_t offset) {
  return std::launder(reinterpret_cast<T*>(base + offset));
}

template <typename T>
const T* FieldAt(std::span<const std::byte> base, int64_t offset) {
  return std::launder(reinterpret_cast<const T*>(base.data() + offset));
}

}  // namespace

int64_t BlockRing::HeadBytes(int64_t slots) const {
  constexpr int64_t kPage = 4096;
  const int64_t bytes = static_cast<int64_t>(sizeof(Counters)) + (world_ + slots) * kCounter;
  return (bytes + kPage - 1) / kPage * kPage;
}

Result<std::unique_ptr<BlockRing>> BlockRing::Make(PeerChannel& channel, bool share, int64_t slots,
                                                   int64_t block_bytes,
                                                   std::chrono::milliseconds deadline) {
  std::unique_ptr<BlockRing> ring(new BlockRing(channel.world(), block_bytes));
  ring->rank_ = channel.rank();
  KEEL_ASSIGN_OR_RETURN(
      ring->window_,
      SharedWindow::Make(channel, share, ring->HeadBytes(slots) + slots * block_bytes,
                         ring->HeadBytes(slots), deadline));
  ring->slots_.assign(static_cast<size_t>(ring->world_), 0);
  ring->slots_[static_cast<size_t>(ring->rank_)] = slots;
  for (int peer = 0; peer < ring->world_; ++peer) {
    if (!ring->near(peer)) continue;
    const auto bytes = static_cast<int64_t>(ring->window_->of(peer).size());
    // The head grows with the slots, though less than they do.
    int64_t theirs = std::max<int64_t>(0, (bytes - ring->HeadBytes(0)) / block_bytes);
    while (theirs > 0 && ring->HeadBytes(theirs) + theirs * block_bytes > bytes) --theirs;
    if (bytes != ring->HeadBytes(theirs) + theirs * block_bytes) {
      return Status(StatusCode::kInternal,
                    fmt::format("rank {} shares {} bytes, expected a head and blocks of {}", peer,
                                bytes, block_bytes));
    }
    ring->slots_[static_cast<size_t>(peer)] = theirs;
  }
  // The window is made of zeros, which is what all counters begin with.
  std::byte* const head = ring->window_->own().data();
  ring->mine_ = FieldAt<Counters>(head, 0);
  ring->taken_ = FieldAt<Counter>(head, sizeof(Counters));
  ring->entries_ = ring->taken_ + ring->world_;
  ring->prepared_.assign(static_cast<size_t>(slots), 0);
  for (int64_t s = slots; s > 0; --s) ring->free_.push_back(s - 1);
  return ring;
}

const BlockRing::Counters& BlockRing::CountersOf(int peer) const {
  return *FieldAt<Counters>(window_->of(peer), 0);
}

std::byte* BlockRing::SlotAt(int64_t place) const {
  const int64_t head = HeadBytes(slots_[static_cast<size_t>(rank_)]);
  return window_->own().data() + head + place * block_bytes_;
}

int64_t BlockRing::TakenByAll() const {
  int64_t taken = published_;
  for (int peer = 0; peer < world_; ++peer) {
    if (near(peer)) taken = std::min(taken, TakenBy(peer));
  }
  return taken;
}

Result<std::byte*> BlockRing::Acquire() {
  const int64_t slots = slots_[static_cast<size_t>(rank_)];
  for (const int64_t taken = TakenByAll(); freed_ < taken; ++freed_) {
    const uint64_t entry = entries_[freed_ % slots].load(std::memory_order_relaxed);
    free_.push_back(static_cast<int64_t>(entry & (kMostSlots - 1)));
  }
  if (free_.empty()) return nullptr;
  const int64_t place = free_.back();
  std::byte* const slot = SlotAt(place);
  char& prepared = prepared_[static_cast<size_t>(place)];
  if (prepared == 0) {
    KEEL_RETURN_IF_ERROR(window_->Populate(slot - window_->own().data(), block_bytes_));
    prepared = 1;
  }
  free_.pop_back();
  return slot;
}

void BlockRing::Publish(const std::byte* slot, int64_t block) {
  // An acquired slot has no entry: the one `slots` ago was freed.
  const int64_t slots = slots_[static_cast<size_t>(rank_)];
  const auto place = static_cast<uint64_t>((slot - SlotAt(0)) / block_bytes_);
  entries_[published_ % slots].store(static_cast<uint64_t>(block) << kSlotBits | place,
                                     std::memory_order_relaxed);
  mine_->published.store(static_cast<uint64_t>(++published_), std::memory_order_release);
}

int64_t BlockRing::TakenBy(int peer) const {
  const auto* taken = FieldAt<Counter>(window_->of(peer), sizeof(Counters));
  return static_cast<int64_t>(taken[rank_].load(std::memory_order_acquire));
}

int64_t BlockRing::Published(int peer) const {
  return static_cast<int64_t>(CountersOf(peer).published.load(std::memory_order_acquire));
}

BlockRing::Entry BlockRing::EntryOf(int peer, int64_t n) const {
  const std::span<const std::byte> window = window_->of(peer);
  const int64_t slots = slots_[static_cast<size_t>(peer)];
  const auto* entries =
      FieldAt<Counter>(window, static_cast<int64_t>(sizeof(Counters)) + world_ * kCounter);
  const uint64_t entry = entries[n % slots].load(std::memory_order_relaxed);
  const auto place = static_cast<int64_t>(entry & (kMostSlots - 1)) % slots;
  return {static_cast<int64_t>(entry >> kSlotBits),
          window.subspan(static_cast<size_t>(HeadBytes(slots) + place * block_bytes_),
                         static_cast<size_t>(block_bytes_))};
}

void BlockRing::Take(int peer, int64_t count) {
  taken_[peer].store(static_cast<uint64_t>(count), std::memory_order_release);
}

void BlockRing::Beat() { mine_->beats.fetch_add(1, std::memory_order_relaxed); }

uint64_t BlockRing::BeatOf(int peer) const {
  return CountersOf(peer).beats.load(std::memory_order_relaxed);
}

void BlockRing::Stop() { mine_->stopped.store(1, std::memory_order_release); }

bool BlockRing::Stopped(int peer) const {
  return CountersOf(peer).stopped.load(std::memory_order_acquire) != 0;
}

}  // namespace keel::checkpoint
