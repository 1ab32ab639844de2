// Addresses and sockets of the job's store.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"

namespace keel::parallel {

// A descriptor that is closed with its owner.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

// "10.0.0.7:29600", "node-3:29600" or "[::1]:29600": the host, without brackets, and the port.
std::optional<std::pair<std::string, int>> ParseHostPort(std::string_view text);

// The host is this one, and nobody else can reach it by that address: 127.0.0.1, localhost, ::1.
bool IsLoopback(const std::string& host);

// kUnavailable says that the name does not resolve, and why.
Status CheckResolves(const std::string& host);

// Listens on `port`, or on any free one for 0, of the host's address, or of all interfaces for "".
Result<Socket> Listen(const std::string& host, int port);
// The next that waits at a listener that blocks nobody, or none. Where this process or the host is
// out of descriptors or memory it pauses: who waits is looked at again when others have gone, and
// without the pause that would be a busy loop.
Socket AcceptOne(const Socket& listener);
// Which port that is.
int PortOf(const Socket& listener);
// "10.0.0.7:51234", for messages.
std::string PeerOf(const Socket& connection);

// One attempt at each address of the host. kUnavailable says which step failed: that the name does
// not resolve, that the connection was refused.
Result<Socket> ConnectOnce(const std::string& host, int port, std::chrono::milliseconds deadline);

}  // namespace keel::parallel
