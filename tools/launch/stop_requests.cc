#include "tools/launch/stop_requests.h"

#include <signal.h>

#include "tools/launch/launcher.h"

namespace keel::tools {

namespace {

// Whoever ends a job often does so in several ways at once.
constexpr std::chrono::seconds kSameRequest{1};

}  // namespace

std::optional<std::chrono::milliseconds> StopRequests::Add(int number, Clock::time_point now) {
  if (number == SIGUSR2) return std::nullopt;
  const bool again = number_ != 0 && now - first_ > kSameRequest;
  if (number_ == 0) first_ = now;
  number_ = number;
  if (again) return timeout_.value_or(kShutdownTimeout);
  return number == SIGUSR1 ? std::nullopt : timeout_;
}

}  // namespace keel::tools
