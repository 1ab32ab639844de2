#include "checkpoint/base/peer_channel.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

namespace keel::checkpoint {
namespace {

// Bytes that wait for their receiver. Lives with the sender, who takes it back on every path.
struct Parcel {
  std::span<const std::byte> bytes;
  enum class State { kWaiting, kCopying, kTaken } state = State::kWaiting;
};

}  // namespace

struct LocalChannelHub::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<int, int>, std::deque<Parcel*>> queues;  // by (from, to)
};

class LocalChannelHub::Member : public PeerChannel {
 public:
  Member(State& state, int rank, int world) : state_(state), rank_(rank), world_(world) {}

  int rank() const override { return rank_; }
  int world() const override { return world_; }

  Status Exchange(std::span<const Send> sends, std::span<const Receive> receives,
                  std::chrono::milliseconds deadline) override {
    const auto until = std::chrono::steady_clock::now() + deadline;
    std::deque<Parcel> mine;
    std::unique_lock lock(state_.mutex);
    for (const Send& send : sends) {
      mine.push_back({send.bytes});
      state_.queues[{rank_, send.peer}].push_back(&mine.back());
    }
    state_.changed.notify_all();
    const auto late = [&](int peer) {
      return Status(StatusCode::kDeadlineExceeded,
                    fmt::format("rank {} waited {} ms for rank {} to exchange what was read", rank_,
                                deadline.count(), peer));
    };
    Status status;
    for (const Receive& receive : receives) {
      std::deque<Parcel*>& queue = state_.queues[{receive.peer, rank_}];
      if (!state_.changed.wait_until(lock, until, [&] { return !queue.empty(); })) {
        status = late(receive.peer);
        break;
      }
      Parcel& parcel = *queue.front();
      queue.pop_front();
      if (parcel.bytes.size() != receive.bytes.size()) {
        status = Status(StatusCode::kInternal,
                        fmt::format("rank {} sent rank {} {} bytes, expected {}", receive.peer,
                                    rank_, parcel.bytes.size(), receive.bytes.size()));
        parcel.state = Parcel::State::kTaken;
        state_.changed.notify_all();
        break;
      }
      parcel.state = Parcel::State::kCopying;
      lock.unlock();
      std::memcpy(receive.bytes.data(), parcel.bytes.data(), parcel.bytes.size());
      lock.lock();
      parcel.state = Parcel::State::kTaken;
      state_.changed.notify_all();
    }
    const auto taken = [](const Parcel& p) { return p.state == Parcel::State::kTaken; };
    for (size_t i = 0; status.ok() && i < mine.size(); ++i) {
      if (!state_.changed.wait_until(lock, until, [&] { return taken(mine[i]); })) {
        status = late(sends[i].peer);
      }
    }
    // Nobody may look at the parcels after this returns.
    for (size_t i = 0; i < mine.size(); ++i) {
      if (mine[i].state == Parcel::State::kWaiting) {
        std::erase(state_.queues[{rank_, sends[i].peer}], &mine[i]);
        continue;
      }
      state_.changed.wait(lock, [&] { return taken(mine[i]); });
    }
    return status;
  }

 private:
  State& state_;
  const int rank_;
  const int world_;
};

LocalChannelHub::LocalChannelHub(int world) : state_(std::make_unique<State>()) {
  for (int r = 0; r < world; ++r) members_.push_back(std::make_unique<Member>(*state_, r, world));
}

LocalChannelHub::~LocalChannelHub() = default;

PeerChannel& LocalChannelHub::rank(int r) { return *members_.at(static_cast<size_t>(r)); }

}  // namespace keel::checkpoint
