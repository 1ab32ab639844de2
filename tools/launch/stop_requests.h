// StopRequests: what the signals that a launcher receives say about the end of its job.
//
// Pure and torch-free. Each signal but SIGUSR2 asks to stop, which for a training job means to save
// first: how long that takes the ranks know, and whoever asks. One more, later than the echo of the
// first, says that there is no time for it. The ranks take the signals in the same way
// (tools/stop_signals.cc).
#pragma once

#include <chrono>
#include <optional>

namespace keel::tools {

class StopRequests {
 public:
  using Clock = std::chrono::steady_clock;

  // `timeout`: grace after a request that is not SIGUSR1, which only announces the end. Nothing: as
  // long as it takes.
  explicit StopRequests(std::optional<std::chrono::milliseconds> timeout) : timeout_(timeout) {}

  // A signal that came at `now`. After the result the ranks that it was passed on to are to be
  // killed; nothing: they are not.
  std::optional<std::chrono::milliseconds> Add(int number, Clock::time_point now);

  // The last signal that asked to stop; 0: none did.
  int number() const { return number_; }

 private:
  const std::optional<std::chrono::milliseconds> timeout_;
  int number_ = 0;
  Clock::time_point first_;
};

}  // namespace keel::tools
