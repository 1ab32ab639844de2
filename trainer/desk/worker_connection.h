// WorkerConnection: the desk's end of a connection that a worker has opened: bytes out and in,
// first the proof of the job's secret, then frames (framing.h).
//
// Knows no message, and never waits: the desk polls. Torch-free. Movable; not thread-safe.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "common/status.h"
#include "parallel/store/sockets.h"
#include "trainer/desk/framing.h"

namespace keel::trainer::desk {

class WorkerConnection {
 public:
  // Takes a socket that does not block.
  WorkerConnection(parallel::Socket socket, const std::string& secret);

  int fd() const { return socket_.fd(); }
  const std::string& peer() const { return peer_; }  // its address
  // To poll for.
  short events() const;

  // Appends a frame to what is to be sent.
  void Say(std::string_view content) { out_ += Frame(content); }
  bool all_sent() const { return out_.empty(); }
  // What has been said is still sent; what comes is not read any more.
  void Close() { closing_ = true; }
  bool closing() const { return closing_; }

  // Moves what can be moved now, by a poll's `events`. False: the connection is gone.
  bool Move(short events);
  // The next frame that came behind the proof; nothing: more has to come. kUsage where the worker
  // does not know the secret; kUnavailable for bytes that are no frame.
  Result<std::optional<std::string>> Next();
  // Since something last came.
  std::chrono::nanoseconds silence() const { return Clock::now() - heard_; }

 private:
  using Clock = std::chrono::steady_clock;

  parallel::Socket socket_;
  std::string peer_;
  FrameReader in_{kMostProofBytes};
  Proof proof_;
  std::string out_;
  Clock::time_point heard_ = Clock::now();
  bool closing_ = false;
};

}  // namespace keel::trainer::desk
