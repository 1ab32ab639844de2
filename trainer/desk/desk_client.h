// DeskClient: a worker's connection to the desk. Torch-free.
//
// Send is for any thread; the rest for one. A thread of its own says that the worker is alive.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "common/status.h"
#include "parallel/store/sockets.h"
#include "trainer/desk/framing.h"
#include "trainer/desk/messages.h"

namespace keel::trainer::desk {

struct DeskAddress {
  std::string host;
  int port = 0;
  std::string secret;
  std::string ToText() const;
  static Result<DeskAddress> Parse(const std::string& text);
};

class DeskClient {
 public:
  // Tries again until `deadline`. kUnavailable or kDeadlineExceeded name the address. kUsage: the
  // desk does not know the secret, or this one not. kCancelled: between two attempts `given_up`,
  // where there is one, said that it is not to try again.
  static Result<std::unique_ptr<DeskClient>> Connect(const DeskAddress& address,
                                                     std::chrono::milliseconds heartbeat,
                                                     std::chrono::milliseconds deadline,
                                                     const std::function<bool()>& given_up = {});
  ~DeskClient();
  DeskClient(const DeskClient&) = delete;
  DeskClient& operator=(const DeskClient&) = delete;

  // The connection is lost once the desk's host has confirmed nothing for so long of what it was
  // sent; before this call it is when the system gives up, after some 15 minutes.
  void GiveUpAfter(std::chrono::milliseconds silence);
  // What the next heartbeats say.
  void Note(const Heartbeat& beat);
  // By one thread, as Receive. kUnavailable: the desk is gone; what it refused this one for before
  // it closed the connection, where that has come. Ok where it has said Bye, which Receive returns
  // then: it needs no word any more.
  Status Send(const Message& message);
  // Set within two heartbeats after the desk is gone, or has closed the connection: what is sent
  // first only learns of it.
  const std::atomic<bool>& gone() const { return gone_; }
  // The next message; nothing when none has come for `patience`. kUnavailable: the desk is gone, or
  // what came of it is damaged.
  Result<std::optional<Message>> Receive(std::chrono::milliseconds patience);

 private:
  explicit DeskClient(parallel::Socket socket) : socket_(std::move(socket)) {}
  Status Introduce(const std::string& secret, std::chrono::milliseconds deadline);
  Status SendBytes(std::string_view bytes);
  Status Gone(const char* what, int error = 0);
  Status LastWord(const Status& gone);
  // Feeds what has come; false when nothing has for `patience`.
  Result<bool> Feed(std::chrono::milliseconds patience);

  parallel::Socket socket_;
  FrameReader in_{kMostFrameBytes};
  std::atomic<int64_t> silence_ms_{0};  // see GiveUpAfter
  std::atomic<bool> gone_{false};
  std::atomic<bool> cut_off_{false};  // the system has said that it is lost for that
  std::mutex sending_;
  std::mutex ending_;  // guards what follows
  std::condition_variable end_;
  bool ended_ = false;
  Heartbeat beat_;
  std::thread heart_;
  std::optional<Bye> farewell_;  // it came before an attempt to send something
};

}  // namespace keel::trainer::desk
