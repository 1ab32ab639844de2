#include "trainer/desk/worker_connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

namespace keel::trainer::desk {

namespace {

// They lie on the stack, of which `ulimit -s` may leave a thread no more than 256 KiB.
constexpr size_t kReadBytes = 64 << 10;

// Of a call that moved nothing: whether it may do so later.
bool MayMoveLater() { return errno == EAGAIN || errno == EINTR; }

}  // namespace

WorkerConnection::WorkerConnection(parallel::Socket socket, const std::string& secret)
    : socket_(std::move(socket)),
      peer_(parallel::PeerOf(socket_)),
      proof_(secret, parallel::Prover::kServer) {}

short WorkerConnection::events() const {
  return static_cast<short>(POLLIN | (out_.empty() ? 0 : POLLOUT));
}

bool WorkerConnection::Move(short events) {
  if ((events & POLLOUT) != 0) {
    const ssize_t sent = send(fd(), out_.data(), out_.size(), MSG_NOSIGNAL);
    if (sent > 0) out_.erase(0, static_cast<size_t>(sent));
    if (sent < 0 && !MayMoveLater()) return false;
  }
  if ((events & (POLLIN | POLLHUP | POLLERR)) == 0) return true;
  std::array<char, kReadBytes> buffer;
  const ssize_t got = recv(fd(), buffer.data(), buffer.size(), 0);
  if (got <= 0) return got < 0 && MayMoveLater();
  if (closing_) return true;
  heard_ = Clock::now();
  in_.Feed({buffer.data(), static_cast<size_t>(got)});
  return true;
}

Result<std::optional<std::string>> WorkerConnection::Next() {
  while (true) {
    KEEL_ASSIGN_OR_RETURN(std::optional<std::string> frame, in_.Next());
    if (!frame || proof_.done()) return frame;
    KEEL_ASSIGN_OR_RETURN(const std::string answer, proof_.On(*frame));
    Say(answer);
    if (proof_.done()) in_.set_most(kMostFrameBytes);
  }
}

}  // namespace keel::trainer::desk
