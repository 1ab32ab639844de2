// SocketChannel: a PeerChannel between processes that were forked from one, over socket pairs.
//
// For small messages: all is sent before anything is received. A peer whose process has ended is
// kUnavailable.
#pragma once

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <vector>

#include "checkpoint/peer_channel.h"

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

  Status Exchange(std::span<const Send> sends, std::span<const Receive> receives,
                  std::chrono::milliseconds deadline) override {
    const timeval limit{static_cast<time_t>(deadline.count() / 1000), 1};
    for (const Send& one : sends) {
      size_t at = 0;
      while (at < one.bytes.size()) {
        const ssize_t n = ::send(pairs_.end(rank_, one.peer), one.bytes.data() + at,
                                 one.bytes.size() - at, MSG_NOSIGNAL);
        if (n <= 0) return Failed(one.peer, n);
        at += static_cast<size_t>(n);
      }
    }
    for (const Receive& one : receives) {
      const int end = pairs_.end(rank_, one.peer);
      (void)::setsockopt(end, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
      size_t at = 0;
      while (at < one.bytes.size()) {
        const ssize_t n = ::recv(end, one.bytes.data() + at, one.bytes.size() - at, 0);
        if (n <= 0) return Failed(one.peer, n);
        at += static_cast<size_t>(n);
      }
    }
    return Status::Ok();
  }

 private:
  Status Failed(int peer, ssize_t n) const {
    const bool late = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    return Status(late ? StatusCode::kDeadlineExceeded : StatusCode::kUnavailable,
                  fmt::format("rank {} waited for rank {} to exchange", rank_, peer));
  }

  const SocketPairs& pairs_;
  const int rank_;
};

}  // namespace keel::checkpoint::testing
