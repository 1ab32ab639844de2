#include "trainer/desk/desk_client.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "common/json.h"

namespace keel::trainer::desk {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kPause{200};
// For the desk to take what is sent.
constexpr int kSendMs = 60'000;

// Something else may listen there, which says other things, or nothing.
Status NoDesk(const DeskAddress& address, const Status& why) {
  return Status(why.code(),
                fmt::format("no desk of a run answers at {}:{} ({}): look whether this is the port "
                            "that the run has printed, and whether the run goes on",
                            address.host, address.port, why.message()));
}

}  // namespace

std::string DeskAddress::ToText() const {
  return Json{{"host", host}, {"port", port}, {"secret", secret}}.dump();
}

Result<DeskAddress> DeskAddress::Parse(const std::string& text) {
  KEEL_ASSIGN_OR_RETURN(const Json json, ParseJson(text, "the desk's address"));
  const auto has = [&](const char* key, bool number) {
    return json.contains(key) && (number ? json[key].is_number_integer() : json[key].is_string());
  };
  if (!json.is_object() || !has("host", false) || !has("port", true) || !has("secret", false))
    return Status(StatusCode::kInvalidData, "it is no address of a desk");
  if (const double port = json["port"].get<double>(); port < 1 || port > 65535) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("port: expected 1 to 65535, found {}", json["port"].dump()));
  }
  return DeskAddress{json["host"], json["port"], json["secret"]};
}

Result<std::unique_ptr<DeskClient>> DeskClient::Connect(const DeskAddress& address,
                                                        std::chrono::milliseconds heartbeat,
                                                        std::chrono::milliseconds deadline,
                                                        const std::function<bool()>& given_up) {
  const Clock::time_point until = Clock::now() + deadline;
  while (true) {
    if (given_up && given_up())
      return Status(StatusCode::kCancelled, "told not to wait for the desk");
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
    Result<parallel::Socket> socket = parallel::ConnectOnce(address.host, address.port, left);
    Status status = socket.status();
    if (status.ok()) {
      const int on = 1;
      setsockopt(socket->fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      std::unique_ptr<DeskClient> client(new DeskClient(std::move(socket).value()));
      status = client->Introduce(address.secret, left);
      if (status.ok()) {
        DeskClient* const raw = client.get();
        raw->heart_ = std::thread([raw, heartbeat] {
          std::unique_lock lock(raw->ending_);
          while (!raw->end_.wait_for(lock, heartbeat, [raw] { return raw->ended_; })) {
            const Heartbeat beat = raw->beat_;
            lock.unlock();
            if (!raw->SendBytes(Frame(Encode(Message(beat)))).ok()) raw->gone_ = true;
            lock.lock();
          }
        });
        return client;
      }
      if (status.code() == StatusCode::kUsage) return status;
    }
    if (Clock::now() + kPause > until) return NoDesk(address, status);
    std::this_thread::sleep_for(kPause);
  }
}

DeskClient::~DeskClient() {
  {
    const std::lock_guard lock(ending_);
    ended_ = true;
  }
  end_.notify_all();
  if (heart_.joinable()) heart_.join();
}

void DeskClient::Note(const Heartbeat& beat) {
  const std::lock_guard lock(ending_);
  beat_ = beat;
}

void DeskClient::GiveUpAfter(std::chrono::milliseconds silence) {
  silence_ms_ = silence.count();
  const auto ms = static_cast<unsigned>(silence.count());
  setsockopt(socket_.fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
}

// The system says only once, to the thread that comes first, that the other host is silent.
Status DeskClient::Gone(const char* what, int error) {
  if (error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH) cut_off_ = true;
  const std::string why = !cut_off_         ? what
                          : silence_ms_ > 0 ? fmt::format(
                                                  "its host has confirmed nothing for {} s "
                                                  "(async_training.worker_timeout_seconds)",
                                                  static_cast<double>(silence_ms_) / 1000)
                                            : "its host does not answer";
  return Status(StatusCode::kUnavailable, "the desk (trainer rank 0) is gone: " + why);
}

Status DeskClient::Introduce(const std::string& secret, std::chrono::milliseconds deadline) {
  Proof proof(secret, parallel::Prover::kClient);
  KEEL_RETURN_IF_ERROR(SendBytes(Frame(proof.Begin())));
  const Clock::time_point until = Clock::now() + deadline;
  while (!proof.done()) {
    KEEL_ASSIGN_OR_RETURN(const std::optional<std::string> frame, in_.Next());
    if (frame) {
      Result<std::string> answer = proof.On(*frame);
      // A desk that turns one away says why in a message.
      if (const Result<Message> said = Decode(*frame); !answer.ok() && said.ok()) {
        if (const auto* refused = std::get_if<Refused>(&*said))
          return Status(refused->code, "the desk: " + refused->message);
      }
      KEEL_RETURN_IF_ERROR(answer.status());
      if (!answer->empty()) KEEL_RETURN_IF_ERROR(SendBytes(Frame(*answer)));
      continue;
    }
    KEEL_ASSIGN_OR_RETURN(const bool more, Feed(kPause));
    if (!more && Clock::now() > until)
      return Status(StatusCode::kDeadlineExceeded, "the desk does not answer");
  }
  return Status::Ok();
}

Status DeskClient::SendBytes(std::string_view bytes) {
  const std::lock_guard lock(sending_);
  while (!bytes.empty()) {
    pollfd polled = {socket_.fd(), POLLOUT, 0};
    const int ready = poll(&polled, 1, kSendMs);
    if (ready == 0) return Gone("it takes nothing");
    const ssize_t sent =
        send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EINTR)
      return Gone("the connection is closed", errno);
    if (sent > 0) bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return Status::Ok();
}

Status DeskClient::Send(const Message& message) {
  const Status sent = SendBytes(Frame(Encode(message)));
  return sent.ok() ? sent : LastWord(sent);
}

Status DeskClient::LastWord(const Status& gone) {
  while (true) {
    const Result<std::optional<Message>> message = Receive(std::chrono::milliseconds(0));
    if (!message.ok() || !*message) return gone;
    if (const auto* refused = std::get_if<Refused>(&**message))
      return Status(refused->code, "the desk: " + refused->message);
    if (const auto* bye = std::get_if<Bye>(&**message)) {
      farewell_ = *bye;
      return Status::Ok();
    }
  }
}

Result<bool> DeskClient::Feed(std::chrono::milliseconds patience) {
  pollfd polled = {socket_.fd(), POLLIN, 0};
  const int ready = poll(&polled, 1, static_cast<int>(patience.count()));
  if (ready <= 0) return false;
  std::array<char, 64 << 10> buffer;
  const ssize_t got = recv(socket_.fd(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got == 0) return Gone("it has closed the connection");
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got < 0) return Gone("the connection is broken", errno);
  in_.Feed({buffer.data(), static_cast<size_t>(got)});
  return true;
}

Result<std::optional<Message>> DeskClient::Receive(std::chrono::milliseconds patience) {
  if (farewell_) return std::optional<Message>(*farewell_);
  const Clock::time_point until = Clock::now() + patience;
  while (true) {
    KEEL_ASSIGN_OR_RETURN(std::optional<std::string> frame, in_.Next());
    if (frame) {
      KEEL_ASSIGN_OR_RETURN(Message message, Decode(*frame));
      return std::optional<Message>(std::move(message));
    }
    const auto left =
        std::max(std::chrono::milliseconds(0),
                 std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()));
    KEEL_ASSIGN_OR_RETURN(const bool more, Feed(left));
    if (!more) return std::optional<Message>();
  }
}

}  // namespace keel::trainer::desk
