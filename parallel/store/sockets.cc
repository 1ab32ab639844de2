#include "parallel/store/sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <thread>

namespace keel::parallel {

namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<AddressList> Resolve(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(),
                                &hints, &found);
  if (error != 0) {
    return Status(
        StatusCode::kUnavailable,
        fmt::format("the name {} does not resolve on this host ({}): neither /etc/hosts nor DNS "
                    "knows it",
                    host, error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error)));
  }
  return AddressList(found, &freeaddrinfo);
}

std::string NameOf(const sockaddr* address, socklen_t size) {
  std::array<char, 64> host{};
  std::array<char, 8> port{};
  if (getnameinfo(address, size, host.data(), host.size(), port.data(), port.size(),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "unknown";
  const bool v6 = address->sa_family == AF_INET6;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", host.data(), v6 ? "]" : "", port.data());
}

Result<Socket> ListenAt(const addrinfo& address) {
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const std::string name = NameOf(address.ai_addr, address.ai_addrlen);
  if (socket.fd() < 0) return Status::FromErrno(errno, "socket for", name);
  const int on = 1;
  const int off = 0;
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  // One socket for both families, where the address is that of all interfaces.
  if (address.ai_family == AF_INET6)
    setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (bind(socket.fd(), address.ai_addr, address.ai_addrlen) != 0)
    return Status::FromErrno(errno, "bind", name);
  if (listen(socket.fd(), SOMAXCONN) != 0) return Status::FromErrno(errno, "listen", name);
  return socket;
}

Status ConnectTo(const Socket& socket, const addrinfo& address,
                 std::chrono::steady_clock::time_point deadline) {
  const std::string name = NameOf(address.ai_addr, address.ai_addrlen);
  if (socket.fd() < 0) return Status::FromErrno(errno, "socket for", name);
  if (connect(socket.fd(), address.ai_addr, address.ai_addrlen) == 0) return Status::Ok();
  if (errno != EINPROGRESS && errno != EINTR) return Status::FromErrno(errno, "connect", name);
  pollfd polled = {socket.fd(), POLLOUT, 0};
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() < 0) return Status::FromErrno(ETIMEDOUT, "connect", name);
    const int ready = poll(&polled, 1, static_cast<int>(left.count()));
    if (ready < 0 && errno != EINTR) return Status::FromErrno(errno, "poll", name);
    if (ready > 0) break;
  }
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 ? Status::Ok() : Status::FromErrno(error, "connect", name);
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

std::optional<std::pair<std::string, int>> ParseHostPort(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  int port = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, port);
  if (error != std::errc() || stop != end || port <= 0 || port > 65535) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  return std::pair(std::string(host), port);
}

bool IsLoopback(const std::string& host) {
  const auto list = Resolve(host, 0, 0);
  if (host.empty() || !list.ok()) return false;
  for (const addrinfo* at = list->get(); at != nullptr; at = at->ai_next) {
    if (at->ai_family == AF_INET) {
      const auto* v4 = reinterpret_cast<const sockaddr_in*>(at->ai_addr);
      if (ntohl(v4->sin_addr.s_addr) >> 24 != 127) return false;
    } else if (at->ai_family == AF_INET6) {
      const auto* v6 = reinterpret_cast<const sockaddr_in6*>(at->ai_addr);
      if (!IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr)) return false;
    }
  }
  return true;
}

Status CheckResolves(const std::string& host) { return Resolve(host, 0, 0).status(); }

Result<Socket> Listen(const std::string& host, int port) {
  KEEL_ASSIGN_OR_RETURN(const AddressList list, Resolve(host, port, AI_PASSIVE));
  Status last(StatusCode::kUnavailable, "no address");
  // For all interfaces the address of IPv6 serves both; it comes first, where there is one.
  for (const bool v6 : {host.empty(), !host.empty()}) {
    for (const addrinfo* at = list.get(); at != nullptr; at = at->ai_next) {
      if ((at->ai_family == AF_INET6) != v6) continue;
      Result<Socket> socket = ListenAt(*at);
      if (socket.ok()) return socket;
      last = socket.status();
    }
  }
  return last;
}

Socket AcceptOne(const Socket& listener) {
  while (true) {
    Socket socket(accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.fd() < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (socket.fd() < 0 &&
        (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS))
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return socket;
  }
}

int PortOf(const Socket& listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

std::string PeerOf(const Socket& connection) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getpeername(connection.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return "unknown";
  return NameOf(reinterpret_cast<const sockaddr*>(&address), size);
}

Result<Socket> ConnectOnce(const std::string& host, int port, std::chrono::milliseconds deadline) {
  const auto until = std::chrono::steady_clock::now() + deadline;
  KEEL_ASSIGN_OR_RETURN(const AddressList list, Resolve(host, port, 0));
  Status last(StatusCode::kUnavailable, "no address");
  int addresses = 0;
  for (const addrinfo* at = list.get(); at != nullptr; at = at->ai_next) ++addresses;
  for (const addrinfo* at = list.get(); at != nullptr; at = at->ai_next, --addresses) {
    Socket socket(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    // A network that swallows one family's packets says nothing: each address has its share.
    const auto now = std::chrono::steady_clock::now();
    last = ConnectTo(socket, *at, now + (until - now) / addresses);
    if (!last.ok()) continue;
    const int on = 1;
    setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(socket.fd(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    return socket;
  }
  return Status(StatusCode::kUnavailable, last.message());
}

}  // namespace keel::parallel
