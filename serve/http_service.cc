#include "serve/http_service.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <httplib.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <optional>
#include <set>
#include <system_error>
#include <thread>

#include "common/guarded.h"
#include "common/text.h"
#include "serve/host_header.h"

namespace keel::serve {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kSlice{100};  // after which a wait looks whether all is to end
constexpr int kBacklog = 512;
constexpr int64_t kMostDrained = int64_t{16} << 20;
constexpr std::chrono::seconds kDrain{2};
constexpr size_t kMostPath = 256;
constexpr size_t kMostHead = 64 << 10;  // of a request: its first line and its headers

int MillisecondsUntil(Clock::time_point end) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1'000'000'000));
}

// Whether `events` came before the time.
bool Poll(int fd, int16_t events, Clock::time_point end) {
  while (true) {
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, MillisecondsUntil(end));
    if (ready >= 0) return ready > 0;
    if (errno != EINTR) return false;
  }
}

void AddressOf(int (*ask)(int, sockaddr*, socklen_t*), int fd, std::string* ip, int* port) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (ask(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return;
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    *port = ntohs(v4.sin_port);
  } else if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    ::inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
    *port = ntohs(v6.sin6_port);
  }
  *ip = text.data();
}

// The last answer of a connection, which httplib does not write.
std::string LastAnswer(std::string_view status, std::string_view headers, std::string_view body) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: application/json\r\nConnection: close\r\n{}Content-Length: "
      "{}\r\n\r\n{}",
      status, headers, body.size(), body);
}

std::string Lowered(std::string_view text) {
  std::string lowered(text);
  for (char& c : lowered) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lowered;
}

// Whom and what a request asks for where its first line has an absolute URI (RFC 9112, 3.2.2),
// which httplib takes for a path.
struct AbsoluteUri {
  std::string_view authority, path;
};
std::optional<AbsoluteUri> AbsoluteUriOf(std::string_view target) {
  const size_t end = target.find("://");
  const std::string scheme = Lowered(target.substr(0, std::min(end, target.size())));
  if (end == std::string_view::npos || (scheme != "http" && scheme != "https")) return std::nullopt;
  target.remove_prefix(end + 3);
  const size_t slash = std::min(target.find('/'), target.size());
  return AbsoluteUri{target.substr(0, slash),
                     slash == target.size() ? std::string_view("/") : target.substr(slash)};
}
std::string_view PathOf(const httplib::Request& request) {
  const auto absolute = AbsoluteUriOf(request.path);
  return absolute ? absolute->path : std::string_view(request.path);
}

// A connection's socket, as httplib reads and writes it.
class Connection final : public httplib::Stream, public HttpClient {
 public:
  // With `stopping` a request must come in without a pause.
  Connection(int fd, const HttpOptions& options, const std::atomic<bool>& stopping)
      : fd_(fd), options_(options), stopping_(stopping) {
    ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  }
  Connection(const Connection&) = delete;
  ~Connection() override { ::close(fd_); }

  // A request begins: false when none does.
  bool WaitForRequest(std::chrono::seconds patience) {
    const auto end = Clock::now() + patience;
    while (begin_ == end_ && !Poll(fd_, POLLIN, std::min(end, Clock::now() + kSlice))) {
      if (stopping_ || Clock::now() >= end) return false;
    }
    request_end_ = Clock::now() + options_.request;
    head_left_ = kMostHead;
    return true;
  }
  // What is read from here on is the request's body.
  void HeadIsThere() { head_left_.reset(); }
  void CloseAfterThis() { closes_ = true; }
  // Whatever is written after it is thrown away.
  void WriteLast(std::string_view text) {
    Write(text);
    closes_ = written_last_ = true;
  }
  bool closes() const { return closes_; }
  // What was written gets to a client that is still writing: with unread bytes in the socket it
  // would be thrown away.
  void Drain() {
    ::shutdown(fd_, SHUT_WR);
    const auto end = Clock::now() + kDrain;
    std::array<char, 65536> bytes;
    for (int64_t drained = 0; drained < kMostDrained;) {
      if (!Poll(fd_, POLLIN, end)) return;
      const ssize_t count = ::recv(fd_, bytes.data(), bytes.size(), 0);
      if (count <= 0) return;
      drained += count;
    }
  }

  // HttpClient. Its end is known also while bytes that nobody has read stand before it. Who has
  // only ended what he sends looks the same as who has left.
  bool gone() override {
    pollfd entry{fd_, POLLRDHUP, 0};  // beside POLLHUP and POLLERR, which always count
    return ::poll(&entry, 1, 0) > 0;
  }
  bool Write(std::string_view text) override {
    return write(text.data(), text.size()) == static_cast<ssize_t>(text.size());
  }

  // httplib::Stream.
  bool is_readable() const override {
    if (begin_ < end_) return true;
    while (!Poll(fd_, POLLIN, std::min(request_end_, Clock::now() + kSlice))) {
      if (stopping_ || Clock::now() >= request_end_) return false;
    }
    return true;
  }
  bool is_writable() const override { return Poll(fd_, POLLOUT, Clock::now() + options_.write); }
  ssize_t read(char* to, size_t size) override {
    if (begin_ == end_) {
      if (!is_readable() || Clock::now() >= request_end_) return -1;
      const ssize_t count = ::recv(fd_, buffer_.data(), buffer_.size(), 0);
      if (count <= 0) return count;
      begin_ = 0;
      end_ = static_cast<size_t>(count);
    }
    size_t count = std::min(size, end_ - begin_);
    if (head_left_) {
      count = std::min(count, *head_left_);
      *head_left_ -= count;
      if (count == 0) return -1;  // nobody needs so many headers
    }
    std::copy_n(buffer_.data() + begin_, count, to);
    begin_ += count;
    return static_cast<ssize_t>(count);
  }
  ssize_t write(const char* from, size_t size) override {
    if (written_last_) return static_cast<ssize_t>(size);
    const auto end = Clock::now() + options_.write;
    for (size_t done = 0; done < size;) {
      const ssize_t count = ::send(fd_, from + done, size - done, MSG_NOSIGNAL);
      if (count >= 0) {
        done += static_cast<size_t>(count);
      } else if (errno == EAGAIN) {
        if (!Poll(fd_, POLLOUT, end)) return -1;
      } else if (errno != EINTR) {
        return -1;
      }
    }
    return static_cast<ssize_t>(size);
  }
  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    AddressOf(::getpeername, fd_, &ip, &port);
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override {
    AddressOf(::getsockname, fd_, &ip, &port);
  }
  socket_t socket() const override { return fd_; }

 private:
  const int fd_;
  const HttpOptions& options_;
  const std::atomic<bool>& stopping_;
  bool closes_ = false;
  bool written_last_ = false;
  Clock::time_point request_end_;
  std::optional<size_t> head_left_;  // bytes that a head may still have; nothing behind it
  std::array<char, 8192> buffer_;
  size_t begin_ = 0, end_ = 0;
};

// Of this thread, while it has one.
thread_local Connection* this_connection = nullptr;
// What this thread, which accepts, is about to process is one too many.
thread_local bool turns_away = false;

// A thread a connection.
class ConnectionThreads {
 public:
  // False when there are `most` already, or no thread is to be had.
  bool Start(int64_t most, const std::function<void()>& work) {
    {
      const std::lock_guard lock(mutex_);
      if (running_ >= most) return false;
      ++running_;
    }
    try {
      std::thread([this, work] {
        // Out of memory for one client: its connection ends, and the server stays.
        (void)Guarded([&] {
          work();
          return Status::Ok();
        });
        const std::lock_guard lock(mutex_);
        --running_;
        ended_.notify_all();
      }).detach();
      return true;
    } catch (const std::system_error&) {
      const std::lock_guard lock(mutex_);
      --running_;
      return false;
    }
  }
  bool Join(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    return ended_.wait_for(lock, patience, [&] { return running_ == 0; });
  }
  int64_t running() const {
    const std::lock_guard lock(mutex_);
    return running_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  int64_t running_ = 0;
};

}  // namespace

class HttpService::Server final : public httplib::Server {
 public:
  Server(HttpOptions options, std::vector<std::string> open_paths, HttpService::Handler handler,
         Writer writer, Listener listener)
      : options_(std::move(options)),
        open_paths_(std::move(open_paths)),
        handler_(std::move(handler)),
        writer_(std::move(writer)),
        listener_(std::move(listener)) {
    new_task_queue = [this]() -> httplib::TaskQueue* { return new Tasks(*this); };
    set_keep_alive_max_count(1000);
    set_keep_alive_timeout(static_cast<time_t>(options_.keep_alive.count()));
    set_payload_max_length(static_cast<size_t>(options_.most_body_bytes));
    set_tcp_nodelay(true);
    set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      this_connection->HeadIsThere();
      const auto refusal = Examine(request);
      if (!refusal) return HandlerResponse::Unhandled;
      // What is left of it is not read.
      CloseAfterThis(response);
      Refuse(*refusal, response);
      return HandlerResponse::Handled;
    });
    const auto answer = [this](const httplib::Request& request, httplib::Response& response) {
      Take(handler_({request.method, std::string(PathOf(request)), request.body}, *this_connection),
           request, response);
    };
    Get(".*", answer);
    Post(".*", answer);
    Put(".*", answer);
    Patch(".*", answer);
    Delete(".*", answer);
    Options(".*", answer);
    set_exception_handler([this](const auto&, httplib::Response& response, const auto&) {
      Refuse({.status = 500, .message = "an error of the server"}, response);
    });
    // Of what httplib refuses itself.
    set_error_handler(httplib::Server::Handler([this](const auto&, httplib::Response& response) {
      if (!response.body.empty()) return;
      CloseAfterThis(response);
      // A body that paused while the server ends has not come in whole.
      if (stopping_ && response.status == 400) {
        response.set_header("Retry-After", "1");
        return Refuse({.status = 503, .message = "the server is about to end"}, response);
      }
      Refuse({.status = response.status, .message = "not a request that this server understands"},
             response);
    }));
    set_logger([this](const httplib::Request& request, const httplib::Response& response) {
      listener_(std::string(PathOf(request)), response.status);
    });
  }

  Status Start() {
    set_socket_options([this](socket_t socket) {
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
      listening_ = socket;
    });
    port_ = options_.port;
    if (options_.port == 0) {
      port_ = bind_to_any_port(options_.host);
    } else if (!bind_to_port(options_.host, options_.port)) {
      port_ = -1;
    }
    if (port_ <= 0) {
      return {StatusCode::kUnavailable,
              fmt::format("cannot listen at {}:{}: the port is taken, or the address is not this "
                          "machine's",
                          options_.host, options_.port)};
    }
    ::listen(listening_, kBacklog);
    accepting_ = std::thread([this] {
      listen_after_bind();
      accepted_all_ = true;
    });
    return Status::Ok();
  }
  int port() const { return port_; }

  void StopAccepting() {
    stopping_ = true;
    if (!accepting_.joinable()) return;
    // It may not have begun to.
    while (!is_running() && !accepted_all_)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    stop();
    accepting_.join();
  }
  int64_t Join(std::chrono::milliseconds patience) {
    StopAccepting();
    if (threads_.Join(patience)) return 0;
    int64_t cut = 0;
    {
      const std::lock_guard lock(sockets_mutex_);
      for (const int socket : sockets_) ::shutdown(socket, SHUT_RDWR);
      cut = std::ssize(sockets_);
    }
    while (!threads_.Join(std::chrono::seconds(1))) {
    }
    return cut;
  }
  int64_t open_connections() const { return threads_.running(); }

 private:
  class Tasks final : public httplib::TaskQueue {
   public:
    explicit Tasks(Server& server) : server_(server) {}
    // On the thread that accepts.
    void enqueue(std::function<void()> work) override {
      if (server_.threads_.Start(server_.options_.most_connections, work)) return;
      turns_away = true;
      work();
      turns_away = false;
    }
    void shutdown() override {}

   private:
    Server& server_;
  };

  bool process_and_close_socket(socket_t socket) override {
    if (turns_away) return TurnAway(socket);
    Connection connection(socket, options_, stopping_);
    {
      const std::lock_guard lock(sockets_mutex_);
      sockets_.insert(socket);
    }
    this_connection = &connection;
    auto patience = options_.request;
    bool good = true;
    for (size_t left = keep_alive_max_count_; left > 0; --left) {
      if (!connection.WaitForRequest(patience)) break;
      bool closed = left == 1;
      const bool last = left == 1 || stopping_;
      good = process_request(connection, last, closed, [](httplib::Request& request) {
        request.headers.erase("Accept-Encoding");
        request.ranges.clear();
      });
      if (!good || closed || last || connection.closes()) break;
      patience = options_.keep_alive;
    }
    this_connection = nullptr;
    {
      const std::lock_guard lock(sockets_mutex_);
      sockets_.erase(socket);
    }
    if (connection.closes() && !stopping_) connection.Drain();
    return good;
  }

  bool TurnAway(socket_t socket) {
    const std::string body =
        writer_({.status = 503, .message = "too many connections: try again later"});
    const std::string text = LastAnswer("503 Service Unavailable", "Retry-After: 1\r\n", body);
    (void)::send(socket, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    // Unread bytes would make the kernel throw away what was sent.
    std::array<char, 4096> bytes;
    (void)::recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
    ::shutdown(socket, SHUT_WR);
    ::close(socket);
    listener_("", 503);
    return false;
  }

  // Before the body is read.
  std::optional<Refusal> Examine(const httplib::Request& request) const {
    const auto refuse = [](int status, std::string message) {
      return Refusal{.status = status, .message = std::move(message)};
    };
    // With a key, or where others may ask, the name is no sign of who does.
    const auto absolute = AbsoluteUriOf(request.path);
    if (options_.api_key.empty() &&
        ((request.has_header("Host") &&
          !IsOwnHost(request.get_header_value("Host"), options_.host)) ||
         (absolute && !IsOwnHost(absolute->authority, options_.host)))) {
      return refuse(421,
                    "this server, which asks for no key, is called by an address, localhost or the "
                    "name that it listens at; for a proxy that passes another Host on, start it "
                    "with a key");
    }
    const bool open =
        std::find(open_paths_.begin(), open_paths_.end(), PathOf(request)) != open_paths_.end();
    if (!open && !options_.api_key.empty()) {
      constexpr std::string_view kBearer = "Bearer ";
      const std::string given = request.get_header_value("Authorization");
      if (!given.starts_with(kBearer) ||
          !EqualInConstantTime(std::string_view(given).substr(kBearer.size()), options_.api_key)) {
        return Refusal{.status = 401,
                       .message = "expected the API key: Authorization: Bearer KEY",
                       .code = "invalid_api_key"};
      }
    }
    if (request.has_header("Transfer-Encoding"))
      return refuse(411, "expected a body with its Content-Length, found a Transfer-Encoding");
    const size_t lengths = request.get_header_value_count("Content-Length");
    if (lengths > 1) return refuse(400, "more than one Content-Length");
    const std::string length = request.get_header_value("Content-Length");
    if (lengths == 1 && (length.empty() || length.size() > 18 ||
                         !std::all_of(length.begin(), length.end(), IsDigit)))
      return refuse(400, "Content-Length: expected a number");
    const int64_t bytes = lengths == 1 ? std::strtoll(length.c_str(), nullptr, 10) : 0;
    if (bytes > options_.most_body_bytes) {
      return refuse(413, fmt::format("a body of {} bytes, of which {} are taken at most", bytes,
                                     options_.most_body_bytes));
    }
    if (request.path.size() > kMostPath) return refuse(414, "no path is so long");
    const auto& method = request.method;
    if (method != "POST" && method != "PUT" && method != "PATCH")
      return bytes > 0 ? std::optional(refuse(400, "a body where none belongs")) : std::nullopt;
    if (lengths == 0) return refuse(411, "expected a body with its Content-Length");
    if (request.has_header("Content-Encoding"))
      return refuse(415, "expected a body that is not compressed");
    const std::string type = request.get_header_value("Content-Type");
    if (Lowered(Trim(std::string_view(type).substr(0, type.find(';')))) != "application/json")
      return refuse(415, "expected Content-Type: application/json");
    return {};
  }

  static void CloseAfterThis(httplib::Response& response) {
    if (this_connection != nullptr) this_connection->CloseAfterThis();
    response.set_header("Connection", "close");
  }
  void Refuse(const Refusal& refusal, httplib::Response& response) const {
    response.status = refusal.status;
    if (refusal.status == 401) response.set_header("WWW-Authenticate", "Bearer");
    response.set_content(writer_(refusal), "application/json");
  }
  static void Take(HttpReply reply, const httplib::Request& request, httplib::Response& response) {
    response.status = reply.status;
    // httplib has no name for it.
    if (reply.status == kClientClosedRequest) {
      this_connection->WriteLast(LastAnswer("499 Client Closed Request", "", reply.body));
      return;
    }
    for (const auto& [name, value] : reply.headers) response.set_header(name, value);
    if (!reply.stream) {
      response.set_content(reply.body, reply.content_type);
      return;
    }
    const auto provide = [stream = std::move(reply.stream)](size_t, httplib::DataSink& sink) {
      Parts parts(sink);
      const bool whole = stream(parts);
      if (whole) sink.done();
      return whole;
    };
    if (request.version ==
        "HTTP/1.0") {  // which knows no chunks: the connection's end is the body's
      CloseAfterThis(response);
      response.set_content_provider(reply.content_type, provide);
    } else {
      response.set_chunked_content_provider(reply.content_type, provide);
    }
  }

  // A client that gets its body in parts.
  class Parts final : public HttpClient {
   public:
    explicit Parts(httplib::DataSink& sink) : sink_(sink) {}
    bool gone() override { return this_connection->gone(); }
    bool Write(std::string_view text) override { return sink_.write(text.data(), text.size()); }

   private:
    httplib::DataSink& sink_;
  };

  const HttpOptions options_;
  const std::vector<std::string> open_paths_;
  const HttpService::Handler handler_;
  const Writer writer_;
  const Listener listener_;
  int port_ = 0;
  int listening_ = -1;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> accepted_all_{false};
  std::thread accepting_;
  ConnectionThreads threads_;
  std::mutex sockets_mutex_;
  std::set<int> sockets_;
};

std::vector<std::string> HttpOptions::Validate() const {
  std::vector<std::string> problems;
  if (port < 0 || port > 65535)
    problems.push_back(fmt::format("--port is {}, expected 0 to 65535", port));
  const bool alone = host == "localhost" || host == "::1" || host.starts_with("127.");
  if (!alone && api_key.empty()) {
    problems.push_back(
        fmt::format("--host {} can be reached by others: set an API key (KEEL_API_KEY, or the "
                    "variable that --api-key-env names), or listen at 127.0.0.1",
                    host));
  }
  return problems;
}

HttpService::HttpService(HttpOptions options, std::vector<std::string> open_paths, Handler handler,
                         Writer writer, Listener listener)
    : server_(std::make_unique<Server>(std::move(options), std::move(open_paths),
                                       std::move(handler), std::move(writer),
                                       std::move(listener))) {}
HttpService::~HttpService() { server_->Join(std::chrono::milliseconds(0)); }
Status HttpService::Start() { return server_->Start(); }
int HttpService::port() const { return server_->port(); }
void HttpService::StopAccepting() { server_->StopAccepting(); }
int64_t HttpService::Join(std::chrono::milliseconds patience) { return server_->Join(patience); }
int64_t HttpService::open_connections() const { return server_->open_connections(); }

bool EqualInConstantTime(std::string_view given, std::string_view secret) {
  // Of another length it is compared with itself, for as long.
  const bool same_length = given.size() == secret.size();
  const std::string_view other = same_length ? secret : given;
  unsigned char differs = same_length ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i)
    differs = static_cast<unsigned char>(differs | (given[i] ^ other[i]));
  return differs == 0;
}

}  // namespace keel::serve
