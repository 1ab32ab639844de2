#include "parallel/store/store_server.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "parallel/store/sockets.h"
#include "parallel/store/store_service.h"

namespace keel::parallel {

namespace {

using ServerClock = std::chrono::steady_clock;

// For a proof, or the magic number: whoever connects sends it at once.
constexpr std::chrono::seconds kAdmissionDeadline{30};
// Answers that a connection may leave unread.
constexpr size_t kMostUnread = size_t{1} << 30;
// Connections that have not been admitted.
constexpr size_t kMostStrangers = 512;

}  // namespace

class StoreServer::Impl {
 public:
  Impl(StoreServerOptions options, Socket listener, Socket epoll, Socket wake)
      : options_(std::move(options)),
        service_(options_.secret),
        listener_(std::move(listener)),
        epoll_(std::move(epoll)),
        wake_(std::move(wake)),
        port_(PortOf(listener_)) {
    Watch(EPOLL_CTL_ADD, listener_.fd(), EPOLLIN);
    Watch(EPOLL_CTL_ADD, wake_.fd(), EPOLLIN);
    // Signals are for the threads of the program.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const Status started = Guarded([this] {
      thread_ = std::thread([this] { Run(); });
      return Status::Ok();
    });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    ThrowIfError(started);
  }
  ~Impl() {
    stop_ = true;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_.fd(), &one, sizeof one);
    thread_.join();
  }
  int port() const { return port_; }

 private:
  struct Peer {
    Socket socket;
    StoreService::Connection id = 0;
    ServerClock::time_point since;
    size_t sent = 0;  // of the service's output
  };

  void Watch(int what, int fd, uint32_t events) const {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    epoll_ctl(epoll_.fd(), what, fd, &event);
  }

  void Run() {
    std::array<epoll_event, 64> events;
    while (!stop_) {
      const int count =
          epoll_wait(epoll_.fd(), events.data(), events.size(), strangers_ ? 1000 : -1);
      for (int i = 0; i < count; ++i) {
        const int fd = events[static_cast<size_t>(i)].data.fd;
        // Out of memory for what one peer sends: that peer goes, and the job's store stays.
        const Status served = Guarded([&] {
          if (fd == listener_.fd()) {
            Accept();
          } else if (peers_.contains(fd)) {
            Serve(fd, events[static_cast<size_t>(i)].events);
          }
          return Status::Ok();
        });
        if (!served.ok() && peers_.contains(fd)) End(fd);
      }
      EndStrangers();
    }
  }

  void Accept() {
    while (true) {
      Socket socket = AcceptOne(listener_);
      if (socket.fd() < 0) return;
      // Who has not introduced himself for longest makes room: whoever means it does so at once, so
      // that no number of half-open connections keeps a rank out.
      if (strangers_ >= kMostStrangers) End(OldestStranger());
      const int on = 1;
      setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      setsockopt(socket.fd(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
      const int fd = socket.fd();
      Watch(EPOLL_CTL_ADD, fd, EPOLLIN);
      const auto id = service_.Open();
      fds_[id] = fd;
      ++strangers_;
      peers_.emplace(fd, Peer{std::move(socket), id, ServerClock::now()});
    }
  }

  void Serve(int fd, uint32_t events) {
    Peer& peer = peers_.at(fd);
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
      std::array<char, 65536> buffer;
      const ssize_t size = recv(fd, buffer.data(), buffer.size(), 0);
      if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR)) return End(fd);
      if (size > 0) {
        const bool stranger = !service_.admitted(peer.id);
        const Status status = service_.Receive(peer.id, {buffer.data(), static_cast<size_t>(size)});
        if (stranger && service_.admitted(peer.id)) --strangers_;
        if (!status.ok()) return Refuse(peer, status);
      }
    }
    if ((events & EPOLLOUT) != 0) Send(fd);
    // What it asked may have answered others, who waited.
    for (const auto id : service_.TakeReady()) Send(fds_.at(id));
  }

  void Refuse(Peer& peer, const Status& status) {
    const std::string& last = service_.Output(peer.id);
    if (options_.on_refusal && !service_.admitted(peer.id)) {
      const auto why = ExplainRefusal(last);
      options_.on_refusal(PeerOf(peer.socket), why ? *why : status.message());
    }
    [[maybe_unused]] const ssize_t sent =
        send(peer.socket.fd(), last.data(), last.size(), MSG_NOSIGNAL);
    shutdown(peer.socket.fd(), SHUT_WR);
    End(peer.socket.fd());
  }

  void Send(int fd) {
    const auto it = peers_.find(fd);
    if (it == peers_.end()) return;
    Peer& peer = it->second;
    std::string& output = service_.Output(peer.id);
    while (peer.sent < output.size()) {
      const ssize_t size =
          send(fd, output.data() + peer.sent, output.size() - peer.sent, MSG_NOSIGNAL);
      if (size < 0 && errno == EINTR) continue;
      if (size < 0 && errno == EAGAIN) {
        if (output.size() - peer.sent > kMostUnread) return End(fd);
        return Watch(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT);
      }
      if (size < 0) return End(fd);
      peer.sent += static_cast<size_t>(size);
    }
    output.clear();
    peer.sent = 0;
    Watch(EPOLL_CTL_MOD, fd, EPOLLIN);
  }

  void End(int fd) {
    const auto it = peers_.find(fd);
    if (!service_.admitted(it->second.id)) --strangers_;
    fds_.erase(it->second.id);
    service_.Close(it->second.id);
    peers_.erase(it);
  }

  int OldestStranger() const {
    const Peer* oldest = nullptr;
    for (const auto& [fd, peer] : peers_) {
      if (service_.admitted(peer.id)) continue;
      if (oldest == nullptr || peer.since < oldest->since) oldest = &peer;
    }
    return oldest->socket.fd();
  }

  void EndStrangers() {
    if (strangers_ == 0) return;
    std::vector<int> late;
    for (const auto& [fd, peer] : peers_) {
      if (!service_.admitted(peer.id) && ServerClock::now() - peer.since > kAdmissionDeadline)
        late.push_back(fd);
    }
    for (const int fd : late) End(fd);
  }

  const StoreServerOptions options_;
  StoreService service_;
  Socket listener_, epoll_, wake_;
  const int port_;
  std::map<int, Peer> peers_;                    // by descriptor
  std::map<StoreService::Connection, int> fds_;  // of them
  size_t strangers_ = 0;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

Result<StoreServer> StoreServer::Start(StoreServerOptions options) {
  const std::string host = options.host.empty() ? "*" : options.host;
  Result<Socket> listener = Listen(options.host, options.port);
  if (!listener.ok()) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("the job's store cannot be served at {}:{}: {}; choose another port "
                              "(--master-port, MASTER_PORT), and an address of this host",
                              host, options.port, listener.status().message()));
  }
  Socket epoll(epoll_create1(EPOLL_CLOEXEC));
  if (epoll.fd() < 0) return Status::FromErrno(errno, "epoll_create1 for", "the job's store");
  Socket wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake.fd() < 0) return Status::FromErrno(errno, "eventfd for", "the job's store");
  return StoreServer(std::make_unique<Impl>(std::move(options), std::move(listener).value(),
                                            std::move(epoll), std::move(wake)));
}

StoreServer::StoreServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StoreServer::StoreServer(StoreServer&&) noexcept = default;
StoreServer& StoreServer::operator=(StoreServer&&) noexcept = default;
StoreServer::~StoreServer() = default;

int StoreServer::port() const { return impl_->port(); }

std::string WhereToListen(const std::string& host, bool one_node) {
  return one_node || IsLoopback(host) ? host : std::string();
}

}  // namespace keel::parallel
