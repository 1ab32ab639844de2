#include "checkpoint/chunk_ring.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

namespace keel::checkpoint {
namespace {

using Counter = std::atomic<uint64_t>;

constexpr auto kCounter = static_cast<int64_t>(sizeof(Counter));

template <typename T>
T* At(std::byte* base, int64_t offset) {
  return std::launder(reinterpret_cast<T*>(base + offset));
}

template <typename T>
const T* At(std::span<const std::byte> base, int64_t offset) {
  return std::launder(reinterpret_cast<const T*>(base.data() + offset));
}

}  // namespace

int64_t ChunkRing::HeadBytes(int64_t slots) const {
  constexpr int64_t kPage = 4096;
  const int64_t bytes = static_cast<int64_t>(sizeof(Counters)) + (world_ + slots) * kCounter;
  return (bytes + kPage - 1) / kPage * kPage;
}

Result<std::unique_ptr<ChunkRing>> ChunkRing::Make(PeerChannel& channel, bool share, int64_t slots,
                                                   int64_t chunk_bytes,
                                                   std::chrono::milliseconds deadline) {
  std::unique_ptr<ChunkRing> ring(new ChunkRing(channel.world(), chunk_bytes));
  ring->rank_ = channel.rank();
  KEEL_ASSIGN_OR_RETURN(
      ring->window_,
      SharedWindow::Make(channel, share, ring->HeadBytes(slots) + slots * chunk_bytes,
                         ring->HeadBytes(slots), deadline));
  ring->slots_.assign(static_cast<size_t>(ring->world_), 0);
  ring->slots_[static_cast<size_t>(ring->rank_)] = slots;
  for (int peer = 0; peer < ring->world_; ++peer) {
    if (!ring->near(peer)) continue;
    const auto bytes = static_cast<int64_t>(ring->window_->of(peer).size());
    // The head grows with the slots, though less than they do.
    int64_t theirs = std::max<int64_t>(0, (bytes - ring->HeadBytes(0)) / chunk_bytes);
    while (theirs > 0 && ring->HeadBytes(theirs) + theirs * chunk_bytes > bytes) --theirs;
    if (bytes != ring->HeadBytes(theirs) + theirs * chunk_bytes) {
      return Status(StatusCode::kInternal,
                    fmt::format("rank {} shares {} bytes, expected a head and chunks of {}", peer,
                                bytes, chunk_bytes));
    }
    ring->slots_[static_cast<size_t>(peer)] = theirs;
  }
  // The window is made of zeros, which is what all counters begin with.
  std::byte* const head = ring->window_->own().data();
  ring->mine_ = At<Counters>(head, 0);
  ring->taken_ = At<Counter>(head, sizeof(Counters));
  ring->places_ = ring->taken_ + ring->world_;
  ring->prepared_.assign(static_cast<size_t>(slots), 0);
  for (int64_t s = slots; s > 0; --s) ring->free_.push_back(static_cast<uint64_t>(s - 1));
  return ring;
}

const ChunkRing::Counters& ChunkRing::CountersOf(int peer) const {
  return *At<Counters>(window_->of(peer), 0);
}

bool ChunkRing::Place(int64_t chunk, int64_t taken) {
  const int64_t slots = slots_[static_cast<size_t>(rank_)];
  for (; freed_ < std::min(taken, chunk); ++freed_)
    free_.push_back(places_[freed_ % slots].load(std::memory_order_relaxed));
  if (free_.empty()) return false;
  // Peers see it once the chunk is published.
  places_[chunk % slots].store(free_.back(), std::memory_order_relaxed);
  free_.pop_back();
  return true;
}

Status ChunkRing::PrepareSlot(size_t place) {
  if (prepared_[place] != 0) return Status::Ok();
  const int64_t head = HeadBytes(slots_[static_cast<size_t>(rank_)]);
  KEEL_RETURN_IF_ERROR(
      window_->Populate(head + static_cast<int64_t>(place) * chunk_bytes_, chunk_bytes_));
  prepared_[place] = 1;
  return Status::Ok();
}

Status ChunkRing::Prepare(int64_t chunk) {
  const int64_t slots = slots_[static_cast<size_t>(rank_)];
  return PrepareSlot(places_[chunk % slots].load(std::memory_order_relaxed));
}

Status ChunkRing::PrepareAll() {
  for (size_t place = 0; place < prepared_.size(); ++place)
    KEEL_RETURN_IF_ERROR(PrepareSlot(place));
  return Status::Ok();
}

std::byte* ChunkRing::slot(int64_t chunk) const {
  const int64_t slots = slots_[static_cast<size_t>(rank_)];
  const auto place = static_cast<int64_t>(places_[chunk % slots].load(std::memory_order_relaxed));
  return window_->own().data() + HeadBytes(slots) + place * chunk_bytes_;
}

int64_t ChunkRing::TakenBy(int peer) const {
  const auto* taken = At<Counter>(window_->of(peer), sizeof(Counters));
  return static_cast<int64_t>(taken[rank_].load(std::memory_order_acquire));
}

void ChunkRing::Publish(int64_t count) {
  mine_->published.store(static_cast<uint64_t>(count), std::memory_order_release);
}

int64_t ChunkRing::Published(int peer) const {
  return static_cast<int64_t>(CountersOf(peer).published.load(std::memory_order_acquire));
}

std::span<const std::byte> ChunkRing::slot_of(int peer, int64_t chunk) const {
  const std::span<const std::byte> window = window_->of(peer);
  const int64_t slots = slots_[static_cast<size_t>(peer)];
  const auto* places =
      At<Counter>(window, static_cast<int64_t>(sizeof(Counters)) + world_ * kCounter);
  // What the peer says is no more than a hint of where to look: it stays within its window.
  const uint64_t place =
      places[chunk % slots].load(std::memory_order_relaxed) % static_cast<uint64_t>(slots);
  return window.subspan(
      static_cast<size_t>(HeadBytes(slots) + static_cast<int64_t>(place) * chunk_bytes_),
      static_cast<size_t>(chunk_bytes_));
}

void ChunkRing::Take(int peer, int64_t count) {
  taken_[peer].store(static_cast<uint64_t>(count), std::memory_order_release);
}

void ChunkRing::Beat() { mine_->beats.fetch_add(1, std::memory_order_relaxed); }

uint64_t ChunkRing::BeatOf(int peer) const {
  return CountersOf(peer).beats.load(std::memory_order_relaxed);
}

void ChunkRing::Stop() { mine_->stopped.store(1, std::memory_order_release); }

bool ChunkRing::Stopped(int peer) const {
  return CountersOf(peer).stopped.load(std::memory_order_acquire) != 0;
}

}  // namespace keel::checkpoint
