// SocketChannel: a PeerChannel between processes that were forked from one, over socket pairs.
//
// A peer whose process has ended is kUnavailable.
#pragma once

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <span>
#include <vector>

#include "checkpoint/base/peer_channel.h"

namespace keel::checkpoint::testing {

// Made before the ranks are forked. Each keeps its own row, and closes the others' ends.
class SocketPairs {
 public:
  explicit SocketPairs(int world) : ends_(world, std::vector<int>(world, -1)) {
    for (int a = 0; a < world; ++a) {
      for (int b = 0; b < a; ++b) {
        int pair[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) continue;
        ends_[a][b] = pair[0];
        ends_[b][a] = pair[1];
      }
    }
  }
  ~SocketPairs() { KeepOnly(-1); }
  void KeepOnly(int rank) {
    for (int a = 0; a < static_cast<int>(ends_.size()); ++a) {
      if (a == rank) continue;
      for (int& end : ends_[a]) {
        if (end >= 0) ::close(end);
        end = -1;
      }
    }
  }
  int end(int rank, int peer) const { return ends_[rank][peer]; }
  int world() const { return static_cast<int>(ends_.size()); }

 private:
  std::vector<std::vector<int>> ends_;
};

class SocketChannel final : public PeerChannel {
 public:
  SocketChannel(const SocketPairs& pairs, int rank) : pairs_(pairs), rank_(rank) {}
  int rank() const override { return rank_; }
  int world() const override { return pairs_.world(); }

  // Messages to and from a peer travel in order; what a peer is slow with holds up nothing else.
  Status Exchange(std::span<const Send> sends, std::span<const Receive> receives,
                  std::chrono::milliseconds deadline) override {
    std::vector<Queue> queues;
    const auto queue_of = [&](int peer, short event) -> Queue& {
      for (Queue& queue : queues) {
        if (queue.peer == peer && queue.event == event) return queue;
      }
      return queues.emplace_back(Queue{peer, event, {}});
    };
    for (const Send& one : sends) {
      // send() does not write to what it is given.
      queue_of(one.peer, POLLOUT)
          .parts.push_back({const_cast<std::byte*>(one.bytes.data()), one.bytes.size()});
    }
    for (const Receive& one : receives) queue_of(one.peer, POLLIN).parts.push_back(one.bytes);
    const auto until = std::chrono::steady_clock::now() + deadline;
    for (;;) {
      std::erase_if(queues, [](const Queue& queue) { return queue.parts.empty(); });
      if (queues.empty()) return Status::Ok();
      std::vector<pollfd> polled;
      for (const Queue& queue : queues)
        polled.push_back({pairs_.end(rank_, queue.peer), queue.event, 0});
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          until - std::chrono::steady_clock::now());
      if (::poll(polled.data(), polled.size(), std::max<int>(0, static_cast<int>(left.count()))) ==
          0)
        return Failed(queues.front().peer, StatusCode::kDeadlineExceeded);
      for (size_t i = 0; i < queues.size(); ++i) {
        if (polled[i].revents != 0 && !queues[i].Move(polled[i].fd))
          return Failed(queues[i].peer, StatusCode::kUnavailable);
      }
    }
  }

 private:
  struct Queue {
    int peer;
    short event;
    std::deque<std::span<std::byte>> parts;

    // As much of the first as goes now; false when the peer's end is closed.
    bool Move(int end) {
      std::span<std::byte>& part = parts.front();
      const ssize_t n = event == POLLOUT
                            ? ::send(end, part.data(), part.size(), MSG_NOSIGNAL | MSG_DONTWAIT)
                            : ::recv(end, part.data(), part.size(), MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
      if (n <= 0) return false;
      part = part.subspan(static_cast<size_t>(n));
      if (part.empty()) parts.pop_front();
      return true;
    }
  };

  Status Failed(int peer, StatusCode code) const {
    return Status(code, fmt::format("rank {} waited for rank {} to exchange", rank_, peer));
  }

  const SocketPairs& pairs_;
  const int rank_;
};

}  // namespace keel::checkpoint::testing
