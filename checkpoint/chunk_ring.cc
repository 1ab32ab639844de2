#include "checkpoint/chunk_ring.h"

#include <fmt/format.h>

#include <new>
#include <utility>

namespace keel::checkpoint {
namespace {

using Counter = std::atomic<uint64_t>;

int64_t RoundUp(int64_t bytes) {
  constexpr int64_t kPage = 4096;
  return (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace

ChunkRing::ChunkRing(int world, int64_t slots, int64_t chunk_bytes)
    : world_(world),
      slots_(slots),
      chunk_bytes_(chunk_bytes),
      head_bytes_(RoundUp(static_cast<int64_t>(sizeof(Counters)) +
                          world * static_cast<int64_t>(sizeof(Counter)))) {}

Result<std::unique_ptr<ChunkRing>> ChunkRing::Make(PeerChannel& channel, bool share, int64_t slots,
                                                   int64_t chunk_bytes,
                                                   std::chrono::milliseconds deadline) {
  std::unique_ptr<ChunkRing> ring(new ChunkRing(channel.world(), slots, chunk_bytes));
  ring->rank_ = channel.rank();
  KEEL_ASSIGN_OR_RETURN(
      ring->window_,
      SharedWindow::Make(channel, share, ring->head_bytes_ + slots * chunk_bytes, deadline));
  for (int peer = 0; peer < ring->world_; ++peer) {
    if (!ring->near(peer)) continue;
    const auto bytes = static_cast<int64_t>(ring->window_->of(peer).size());
    if (bytes < ring->head_bytes_ || (bytes - ring->head_bytes_) % chunk_bytes != 0) {
      return Status(StatusCode::kInternal,
                    fmt::format("rank {} shares {} bytes, expected {} and chunks of {}", peer,
                                bytes, ring->head_bytes_, chunk_bytes));
    }
  }
  // The window is made of zeros, which is what all counters begin with.
  std::byte* head = ring->window_->own().data();
  ring->mine_ = std::launder(reinterpret_cast<Counters*>(head));
  ring->taken_ = std::launder(reinterpret_cast<Counter*>(head + sizeof(Counters)));
  return ring;
}

const ChunkRing::Counters& ChunkRing::CountersOf(int peer) const {
  return *std::launder(reinterpret_cast<const Counters*>(window_->of(peer).data()));
}

std::byte* ChunkRing::slot(int64_t chunk) const {
  return window_->own().data() + head_bytes_ + chunk % slots_ * chunk_bytes_;
}

int64_t ChunkRing::TakenBy(int peer) const {
  const auto* taken = std::launder(reinterpret_cast<const Counter*>(
      window_->of(peer).data() + static_cast<ptrdiff_t>(sizeof(Counters))));
  return static_cast<int64_t>(taken[rank_].load(std::memory_order_acquire));
}

void ChunkRing::Publish(int64_t count) {
  mine_->published.store(static_cast<uint64_t>(count), std::memory_order_release);
}

int64_t ChunkRing::Published(int peer) const {
  return static_cast<int64_t>(CountersOf(peer).published.load(std::memory_order_acquire));
}

std::span<const std::byte> ChunkRing::slot_of(int peer, int64_t chunk) const {
  const std::span<const std::byte> slots =
      window_->of(peer).subspan(static_cast<size_t>(head_bytes_));
  const int64_t at = chunk * chunk_bytes_ % static_cast<int64_t>(slots.size());
  return slots.subspan(static_cast<size_t>(at), static_cast<size_t>(chunk_bytes_));
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
