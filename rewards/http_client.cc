#include "rewards/http_client.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <limits>
#include <memory>
#include <optional>

#include "common/text.h"

namespace keel::rewards {

namespace {

constexpr size_t kMaxHttpAnswer = size_t{64} << 20;
constexpr size_t kUnknown = std::numeric_limits<size_t>::max();  // length of a body

using Deadline = std::chrono::steady_clock::time_point;

class Socket {
 public:
  Socket(int fd, std::string name) : fd_(fd), name_(std::move(name)) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() { close(fd_); }
  int fd() const { return fd_; }

  Status Wait(short events, Deadline deadline) const {
    while (true) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
                            deadline - std::chrono::steady_clock::now())
                            .count();
      pollfd wait{fd_, events, 0};
      const int ready =
          left <= 0 ? 0 : poll(&wait, 1, static_cast<int>(std::min<long>(left, 60'000)));
      if (ready > 0) return Status::Ok();
      if (ready < 0 && errno != EINTR) return Status::FromErrno(errno, "poll", name_);
      if (left <= 0) {
        return Status(StatusCode::kDeadlineExceeded,
                      fmt::format("{}: no answer within reward.timeout_seconds", name_));
      }
    }
  }

  Status Send(std::string_view text, Deadline deadline) const {
    while (!text.empty()) {
      KEEL_RETURN_IF_ERROR(Wait(POLLOUT, deadline));
      const ssize_t sent = send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent > 0) {
        text.remove_prefix(static_cast<size_t>(sent));
      } else if (errno != EAGAIN && errno != EINTR) {
        return Status(StatusCode::kUnavailable,
                      Status::FromErrno(errno, "send to", name_).message());
      }
    }
    return Status::Ok();
  }

  // Appends what has come; false at the end.
  Result<bool> Receive(std::string& text, Deadline deadline) const {
    while (true) {
      KEEL_RETURN_IF_ERROR(Wait(POLLIN, deadline));
      std::array<char, 65536> buffer;
      const ssize_t got = recv(fd_, buffer.data(), buffer.size(), 0);
      if (got > 0) {
        text.append(buffer.data(), static_cast<size_t>(got));
        if (text.size() > kMaxHttpAnswer) {
          return Status(StatusCode::kInvalidData,
                        fmt::format("{}: an answer of more than {} bytes", name_, kMaxHttpAnswer));
        }
        return true;
      }
      if (got == 0) return false;
      if (errno != EAGAIN && errno != EINTR)
        return Status(StatusCode::kUnavailable,
                      Status::FromErrno(errno, "receive from", name_).message());
    }
  }

 private:
  int fd_;
  std::string name_;
};

std::string NameOf(const HttpAddress& address) {
  return fmt::format("http://{}:{}{}", address.host, address.port, address.path);
}

Result<std::unique_ptr<Socket>> ConnectTo(const HttpAddress& address, const std::string& name,
                                          Deadline deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found);
  if (error != 0) {
    return Status(StatusCode::kUnavailable, fmt::format("{}: {}", name, gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found, &freeaddrinfo);
  Status last(StatusCode::kUnavailable, fmt::format("{}: no address", name));
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    const int fd =
        socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, one->ai_protocol);
    if (fd < 0) continue;
    auto connection = std::make_unique<Socket>(fd, name);
    if (connect(fd, one->ai_addr, one->ai_addrlen) != 0 && errno != EINPROGRESS) {
      last =
          Status(StatusCode::kUnavailable, Status::FromErrno(errno, "connect to", name).message());
      continue;
    }
    KEEL_RETURN_IF_ERROR(connection->Wait(POLLOUT, deadline));
    int failure = 0;
    socklen_t size = sizeof failure;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &size);
    if (failure == 0) return connection;
    last =
        Status(StatusCode::kUnavailable, Status::FromErrno(failure, "connect to", name).message());
  }
  return last;
}

// Value of a header, lower case; "" when it is not there.
std::string Header(std::string_view head, std::string_view name) {
  std::string lower(head);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const size_t at = lower.find("\r\n" + std::string(name) + ":");
  if (at == std::string::npos) return "";
  const size_t begin = lower.find_first_not_of(' ', at + 3 + name.size());
  const size_t end = lower.find("\r\n", at + 2);
  return begin < end ? lower.substr(begin, end - begin) : "";
}

std::optional<size_t> Number(std::string_view text, int base) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end == text.data() || value > kMaxHttpAnswer) return std::nullopt;
  return value;
}

// Takes the chunks of `text` apart; nothing while some are missing. kInvalidData when it is no such
// text.
Result<std::optional<std::string>> Dechunk(std::string_view text, const std::string& name) {
  std::string body;
  while (true) {
    const size_t line = text.find("\r\n");
    if (line == std::string_view::npos) return std::optional<std::string>();
    const auto size = Number(text.substr(0, line), 16);
    if (!size) return Status(StatusCode::kInvalidData, name + ": malformed chunk");
    if (*size == 0) return std::optional(body);
    if (text.size() < line + 2 + *size + 2) return std::optional<std::string>();
    body += text.substr(line + 2, *size);
    text.remove_prefix(line + 2 + *size + 2);
  }
}

}  // namespace

Result<HttpAddress> ParseHttpAddress(const std::string& url) {
  const auto wrong = [&] {
    return Status(StatusCode::kConfig,
                  fmt::format("reward.url '{}': expected http://host[:port][/path]; put a local "
                              "proxy before https",
                              url));
  };
  constexpr std::string_view kScheme = "http://";
  if (url.rfind(kScheme, 0) != 0 || url.find_first_of(" \r\n\t") != std::string::npos)
    return wrong();
  HttpAddress address;
  std::string rest = url.substr(kScheme.size());
  const size_t slash = rest.find('/');
  if (slash != std::string::npos) {
    address.path = rest.substr(slash);
    rest.resize(slash);
  }
  std::string port;
  if (rest.rfind('[', 0) == 0) {
    const size_t close = rest.find(']');
    if (close == std::string::npos) return wrong();
    address.host = rest.substr(1, close - 1);
    if (close + 1 < rest.size()) {
      if (rest[close + 1] != ':') return wrong();
      port = rest.substr(close + 2);
      if (port.empty()) return wrong();
    }
  } else {
    const size_t colon = rest.find(':');
    address.host = rest.substr(0, colon);
    if (colon != std::string::npos) {
      port = rest.substr(colon + 1);
      if (port.empty()) return wrong();
    }
  }
  if (!port.empty()) {
    const auto number = Number(port, 10);
    if (!number || *number < 1 || *number > 65535 ||
        port.find_first_not_of("0123456789") != std::string::npos)
      return wrong();
    address.port = port;
  }
  if (address.host.empty()) return wrong();
  return address;
}

Status HttpConnect(const HttpAddress& address, Deadline deadline) {
  return ConnectTo(address, NameOf(address), deadline).status();
}

Result<std::string> HttpPost(const HttpAddress& address, const std::string& body,
                             Deadline deadline) {
  const std::string name = NameOf(address);
  KEEL_ASSIGN_OR_RETURN(const auto connection, ConnectTo(address, name, deadline));
  KEEL_RETURN_IF_ERROR(connection->Send(
      fmt::format("POST {} HTTP/1.1\r\nHost: {}:{}\r\nContent-Type: application/json\r\n"
                  "Content-Length: {}\r\nConnection: close\r\n\r\n",
                  address.path, address.host, address.port, body.size()),
      deadline));
  KEEL_RETURN_IF_ERROR(connection->Send(body, deadline));

  // 1. The head; a server may send "100 Continue" before.
  std::string text;
  size_t head_end = std::string::npos;
  std::string head;
  while (true) {
    head_end = text.find("\r\n\r\n");
    if (head_end != std::string::npos) {
      head = text.substr(0, head_end + 2);
      if (head.rfind("HTTP/1.", 0) != 0 || head.size() < 12)
        return Status(StatusCode::kInvalidData, name + ": the answer is not HTTP");
      text.erase(0, head_end + 4);
      if (head.substr(9, 3) != "100") break;
      continue;
    }
    KEEL_ASSIGN_OR_RETURN(const bool more, connection->Receive(text, deadline));
    if (!more) {
      return Status(StatusCode::kUnavailable, name + ": the connection ended before an answer");
    }
  }

  // 2. The body: in chunks, of a given length, or up to the end.
  const bool chunked = Header(head, "transfer-encoding").find("chunked") != std::string::npos;
  const std::string length_text = Header(head, "content-length");
  const size_t length = length_text.empty() ? kUnknown : Number(length_text, 10).value_or(kUnknown);
  if (!length_text.empty() && length == kUnknown)
    return Status(StatusCode::kInvalidData, name + ": Content-Length " + length_text);
  while (true) {
    if (chunked) {
      KEEL_ASSIGN_OR_RETURN(auto whole, Dechunk(text, name));
      if (whole) {
        text = std::move(*whole);
        break;
      }
    } else if (text.size() >= length) {
      text.resize(length);
      break;
    }
    KEEL_ASSIGN_OR_RETURN(const bool more, connection->Receive(text, deadline));
    if (more) continue;
    if (!chunked && length == kUnknown) break;
    return Status(StatusCode::kUnavailable, name + ": the connection ended within the answer");
  }
  if (head.substr(9, 3) != "200") {
    return Status(StatusCode::kUnavailable,
                  fmt::format("{}: status {}: {}", name, head.substr(9, 3), Printable(text)));
  }
  return text;
}

}  // namespace keel::rewards
