#include "parallel/store/store_client.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

namespace keel::parallel {

namespace {

// Between two attempts to connect.
constexpr std::chrono::milliseconds kFirstPause{10};
constexpr std::chrono::milliseconds kLongestPause{1000};
// One turn of a wait while others wait, too.
constexpr std::chrono::milliseconds kSharedWait{20};

// A wait sends nothing for as long as it takes: that the host of the store is gone, and not only
// its program, shows only to who asks. The kernel does, after 15 s and then every 5 s.
void NoticeLostHost(const Socket& socket) {
  const int on = 1, idle_s = 15, interval_s = 5, count = 4;
  setsockopt(socket.fd(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

// One more for as long as it lives.
class Counted {
 public:
  explicit Counted(std::atomic<int>& count) : count_(count) { ++count_; }
  ~Counted() { --count_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::atomic<int>& count_;
};

}  // namespace

class StoreClient::Turn {
 public:
  explicit Turn(StoreClient& client) : lock_(client.mutex_, std::defer_lock) {
    // Either the one that waits sees that this wants its turn, or this sees that it waits.
    ++client.wanting_;
    if (client.waiting_) {
      const uint64_t one = 1;
      [[maybe_unused]] const ssize_t written = write(client.wake_.fd(), &one, sizeof one);
    }
    lock_.lock();
    if (--client.wanting_ == 0) client.calm_.notify_all();
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

std::string StoreAddress::ToString() const { return fmt::format("{}:{}", host, port); }

Result<std::unique_ptr<StoreClient>> StoreClient::Connect(const StoreAddress& address,
                                                          std::chrono::milliseconds deadline,
                                                          std::chrono::milliseconds answer_limit) {
  const Clock::time_point until = Clock::now() + deadline;
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
    Status status;
    if (Result<Socket> socket = ConnectOnce(address.host, address.port, left); socket.ok()) {
      Socket wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      if (wake.fd() < 0) return Status::FromErrno(errno, "eventfd for", address.ToString());
      NoticeLostHost(*socket);
      std::unique_ptr<StoreClient> client(
          new StoreClient(address, std::move(socket).value(), std::move(wake), answer_limit));
      // Whoever accepts and says nothing is waited for no longer than one that is not there.
      client->answer_limit_ = std::clamp(left, std::min(kFirstPause, answer_limit), answer_limit);
      status = client->Introduce();
      client->answer_limit_ = answer_limit;
      if (status.ok()) return client;
      if (status.code() == StatusCode::kUsage) return status;
    } else {
      status = socket.status();
    }
    if (Clock::now() + pause > until) return status;
    std::this_thread::sleep_for(pause);
  }
}

Status StoreClient::Introduce() {
  if (!address_.secret.empty()) {
    const StoreNonce ours = MakeStoreNonce();
    StoreNonce theirs{};
    KEEL_RETURN_IF_ERROR(Send(WireWriter().Pod(StoreQuery::kProve).Pod(kProofVersion).Pod(ours)));
    KEEL_RETURN_IF_ERROR(Receive(theirs.data(), theirs.size()));
    const auto refused = [&](const auto& bytes) {
      return ExplainRefusal({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    };
    if (const auto why = refused(theirs)) return Status(StatusCode::kUsage, *why);
    KEEL_RETURN_IF_ERROR(
        Send(WireWriter().Pod(StoreProof(address_.secret, Prover::kClient, ours, theirs))));
    Sha256Digest proof{};
    KEEL_RETURN_IF_ERROR(Receive(proof.data(), proof.size()));
    if (const auto why = refused(proof)) return Status(StatusCode::kUsage, *why);
    if (!SameDigest(proof, StoreProof(address_.secret, Prover::kServer, ours, theirs)))
      return Status(StatusCode::kUsage, "whoever listens there does not know the job's secret");
  }
  WireWriter hello;
  const auto nonce = static_cast<uint32_t>(getpid());
  hello.Pod(StoreQuery::kValidate).U32(kStoreMagic).Pod(StoreQuery::kPing).U32(nonce);
  KEEL_RETURN_IF_ERROR(Send(hello));
  std::string answer(sizeof nonce, '\0');
  KEEL_RETURN_IF_ERROR(Receive(answer.data(), answer.size()));
  uint32_t echo = 0;
  std::memcpy(&echo, answer.data(), sizeof echo);
  if (echo == nonce) return Status::Ok();
  if (kRefusalMark.starts_with(answer)) {
    answer.resize(kRefusalSize);
    KEEL_RETURN_IF_ERROR(Receive(answer.data() + sizeof nonce, kRefusalSize - sizeof nonce));
    if (const auto why = ExplainRefusal(answer)) return Status(StatusCode::kUsage, *why);
  }
  return Status(StatusCode::kUnavailable, "what listens there is no store of a job");
}

Status StoreClient::Set(std::string_view key, std::string_view value) {
  const Turn turn(*this);
  return Send(WireWriter().Pod(StoreQuery::kSet).Text(key).Text(value));
}

Result<std::string> StoreClient::CompareSet(std::string_view key, std::string_view expected,
                                            std::string_view value) {
  const Turn turn(*this);
  KEEL_RETURN_IF_ERROR(
      Send(WireWriter().Pod(StoreQuery::kCompareSet).Text(key).Text(expected).Text(value)));
  std::string now;
  KEEL_RETURN_IF_ERROR(ReceiveText(now));
  return now;
}

Result<std::string> StoreClient::Get(std::string_view key) {
  const Turn turn(*this);
  KEEL_RETURN_IF_ERROR(Send(WireWriter().Pod(StoreQuery::kGet).Text(key)));
  std::string value;
  KEEL_RETURN_IF_ERROR(ReceiveText(value));
  return value;
}

Result<std::optional<std::string>> StoreClient::TryGet(std::string_view key) {
  // One trip, where check and get would be two: what is there, or what was expected, since nothing
  // is. Neither changes anything.
  KEEL_ASSIGN_OR_RETURN(std::string value, CompareSet(key, kNoValue, kNoValue));
  if (value == kNoValue) return std::optional<std::string>();
  return std::optional<std::string>(std::move(value));
}

Result<std::vector<std::optional<std::string>>> StoreClient::TryGetAll(
    const std::vector<std::string>& keys) {
  std::vector<std::optional<std::string>> values;
  for (size_t begin = 0; begin < keys.size(); begin += kMostAtOnce) {
    const size_t end = std::min(keys.size(), begin + kMostAtOnce);
    const Turn turn(*this);
    WireWriter out;
    for (size_t i = begin; i < end; ++i)
      out.Pod(StoreQuery::kCompareSet).Text(keys[i]).Text(kNoValue).Text(kNoValue);
    KEEL_RETURN_IF_ERROR(Send(out));
    for (size_t i = begin; i < end; ++i) {
      std::string value;
      KEEL_RETURN_IF_ERROR(ReceiveText(value));
      values.push_back(value == kNoValue ? std::nullopt : std::optional(std::move(value)));
    }
  }
  return values;
}

Status StoreClient::DeleteAll(const std::vector<std::string>& keys) {
  for (size_t begin = 0; begin < keys.size(); begin += kMostAtOnce) {
    const size_t end = std::min(keys.size(), begin + kMostAtOnce);
    const Turn turn(*this);
    WireWriter out;
    for (size_t i = begin; i < end; ++i) out.Pod(StoreQuery::kDelete).Text(keys[i]);
    KEEL_RETURN_IF_ERROR(Send(out));
    for (size_t i = begin; i < end; ++i) {
      int64_t count = 0;
      KEEL_RETURN_IF_ERROR(Receive(&count, sizeof count));
    }
  }
  return Status::Ok();
}

Result<int64_t> StoreClient::Add(std::string_view key, int64_t amount) {
  const Turn turn(*this);
  KEEL_RETURN_IF_ERROR(Send(WireWriter().Pod(StoreQuery::kAdd).Text(key).Pod(amount)));
  int64_t sum = 0;
  KEEL_RETURN_IF_ERROR(Receive(&sum, sizeof sum));
  return sum;
}

Result<bool> StoreClient::Has(const std::vector<std::string>& keys) {
  const Turn turn(*this);
  KEEL_RETURN_IF_ERROR(Send(WireWriter().Pod(StoreQuery::kCheck).Texts(keys)));
  uint8_t answer = 0;
  KEEL_RETURN_IF_ERROR(Receive(&answer, sizeof answer));
  return answer == kReady;
}

Result<std::vector<std::optional<std::string>>> StoreClient::Look(
    const std::vector<std::string>& keys, std::chrono::milliseconds patience) {
  if (patience.count() > 0 && !keys.empty()) {
    const Status waited = Wait(keys, patience);
    if (!waited.ok() && waited.code() != StatusCode::kDeadlineExceeded) return waited;
  }
  return TryGetAll(keys);
}

Status StoreClient::Wait(const std::vector<std::string>& keys, std::chrono::milliseconds deadline) {
  const Clock::time_point until = Clock::now() + deadline;
  const Counted counted(waits_);
  { const Turn arrival(*this); }  // whoever waits already learns that it is not alone
  for (;;) {
    std::unique_lock lock(mutex_);
    // Whoever interrupted has its turn before this goes on.
    calm_.wait(lock, [&] { return wanting_ == 0; });
    waiting_ = true;
    // Waits share the connection by short turns.
    const Result<bool> found =
        WaitOnce(keys, waits_ == 1 ? until : std::min(until, Clock::now() + kSharedWait));
    waiting_ = false;
    lock.unlock();
    KEEL_RETURN_IF_ERROR(found.status());
    if (*found) return Status::Ok();
    if (Clock::now() < until) {
      if (waits_ > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    return Status(
        StatusCode::kDeadlineExceeded,
        fmt::format("wait timeout after {} ms, keys: {}", deadline.count(), fmt::join(keys, ", ")));
  }
}

Result<bool> StoreClient::WaitOnce(const std::vector<std::string>& keys, Clock::time_point until) {
  KEEL_RETURN_IF_ERROR(Send(WireWriter().Pod(StoreQuery::kWait).Texts(keys)));
  KEEL_ASSIGN_OR_RETURN(const bool answered, Readable(until, true));
  uint8_t answer = 0;
  if (answered) {
    KEEL_RETURN_IF_ERROR(Receive(&answer, sizeof answer));
    if (answer == kWaitDone) return true;
    return Lose(Status(StatusCode::kUnavailable, "its answer to a wait is no answer"));
  }
  // The answer may be on its way: then there are two.
  KEEL_RETURN_IF_ERROR(Send(WireWriter().Pod(StoreQuery::kCancelWait)));
  bool done = false;
  for (;;) {
    KEEL_RETURN_IF_ERROR(Receive(&answer, sizeof answer));
    if (answer != kWaitDone) return done;
    done = true;
  }
}

Result<int64_t> StoreClient::NumKeys() {
  const Turn turn(*this);
  KEEL_RETURN_IF_ERROR(Send(WireWriter().Pod(StoreQuery::kNumKeys)));
  int64_t count = 0;
  KEEL_RETURN_IF_ERROR(Receive(&count, sizeof count));
  return count;
}

Result<bool> StoreClient::Delete(std::string_view key) {
  const Turn turn(*this);
  KEEL_RETURN_IF_ERROR(Send(WireWriter().Pod(StoreQuery::kDelete).Text(key)));
  int64_t count = 0;
  KEEL_RETURN_IF_ERROR(Receive(&count, sizeof count));
  return count == 1;
}

Status StoreClient::Append(std::string_view key, std::string_view value) {
  const Turn turn(*this);
  return Send(WireWriter().Pod(StoreQuery::kAppend).Text(key).Text(value));
}

Result<std::vector<std::string>> StoreClient::MultiGet(const std::vector<std::string>& keys) {
  const Turn turn(*this);
  KEEL_RETURN_IF_ERROR(Send(WireWriter().Pod(StoreQuery::kMultiGet).Texts(keys)));
  std::vector<std::string> values(keys.size());
  for (std::string& value : values) KEEL_RETURN_IF_ERROR(ReceiveText(value));
  return values;
}

Status StoreClient::MultiSet(const std::vector<std::string>& keys,
                             const std::vector<std::string>& values) {
  const Turn turn(*this);
  WireWriter out;
  out.Pod(StoreQuery::kMultiSet).Count(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) out.Text(keys[i]).Text(values[i]);
  return Send(out);
}

Status StoreClient::Lose(Status status) {
  lost_ = status;
  return status;
}

Status StoreClient::Send(const WireWriter& out) {
  if (!lost_.ok()) return lost_;
  const std::string& bytes = out.bytes();
  const Clock::time_point until = Clock::now() + answer_limit_;
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t size = send(socket_.fd(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (size > 0) sent += static_cast<size_t>(size);
    if (size >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN) {
      return Lose(Status(StatusCode::kUnavailable,
                         Status::FromErrno(errno, "send to", address_.ToString()).message()));
    }
    pollfd polled = {socket_.fd(), POLLOUT, 0};
    poll(&polled, 1, 1000);
    if (Clock::now() > until) {
      return Lose(Status(StatusCode::kUnavailable,
                         fmt::format("the store takes nothing for {} ms", answer_limit_.count())));
    }
  }
  return Status::Ok();
}

Result<bool> StoreClient::Readable(Clock::time_point until, bool gives_way) {
  if (taken_ < buffer_.size()) return true;
  while (true) {
    if (gives_way && wanting_ > 0) return false;
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    std::array<pollfd, 2> polled = {{{socket_.fd(), POLLIN, 0}, {wake_.fd(), POLLIN, 0}}};
    const int ready = poll(polled.data(), gives_way ? 2 : 1,
                           static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000)));
    if (ready < 0 && errno != EINTR) {
      return Lose(Status(StatusCode::kUnavailable,
                         Status::FromErrno(errno, "poll", address_.ToString()).message()));
    }
    if (ready > 0 && polled[0].revents != 0) return true;
    if (ready > 0) {
      uint64_t calls = 0;
      [[maybe_unused]] const ssize_t taken = read(wake_.fd(), &calls, sizeof calls);
    }
    if (Clock::now() >= until) return false;
  }
}

Status StoreClient::Receive(void* to, size_t size) {
  if (!lost_.ok()) return lost_;
  const Clock::time_point until = Clock::now() + answer_limit_;
  for (size_t got = 0; got < size;) {
    if (taken_ == buffer_.size()) KEEL_RETURN_IF_ERROR(Refill(until));
    const size_t now = std::min(size - got, buffer_.size() - taken_);
    std::memcpy(static_cast<char*>(to) + got, buffer_.data() + taken_, now);
    got += now;
    taken_ += now;
  }
  return Status::Ok();
}

// Many answers are short, and come together.
Status StoreClient::Refill(Clock::time_point until) {
  constexpr size_t kBuffer = 64 << 10;
  taken_ = 0;
  for (;;) {
    buffer_.resize(kBuffer);
    const ssize_t now = recv(socket_.fd(), buffer_.data(), buffer_.size(), 0);
    const int error = errno;
    buffer_.resize(now > 0 ? static_cast<size_t>(now) : 0);
    if (now > 0) return Status::Ok();
    if (now == 0)
      return Lose(Status(StatusCode::kUnavailable, "the store has closed the connection"));
    if (error == EINTR) continue;
    if (error != EAGAIN) {
      return Lose(Status(StatusCode::kUnavailable,
                         Status::FromErrno(error, "receive from", address_.ToString()).message()));
    }
    KEEL_ASSIGN_OR_RETURN(const bool readable, Readable(until));
    if (!readable) {
      return Lose(
          Status(StatusCode::kUnavailable,
                 fmt::format("the store gives no answer for {} ms", answer_limit_.count())));
    }
  }
}

Status StoreClient::ReceiveText(std::string& text) {
  uint64_t size = 0;
  KEEL_RETURN_IF_ERROR(Receive(&size, sizeof size));
  if (size > kLongestText)
    return Lose(Status(StatusCode::kUnavailable, "the store's answer is no text"));
  text.resize(size);
  return Receive(text.data(), size);
}

}  // namespace keel::parallel
