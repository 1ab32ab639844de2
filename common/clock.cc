#include "common/clock.h"

#include <ctime>
#include <thread>

namespace keel {

namespace {

class RealClock final : public Clock {
 public:
  std::chrono::nanoseconds Monotonic() const override {
    return std::chrono::steady_clock::now().time_since_epoch();
  }
  std::chrono::system_clock::time_point Wall() const override {
    return std::chrono::system_clock::now();
  }
  void SleepFor(std::chrono::nanoseconds duration) const override {
    std::this_thread::sleep_for(duration);
  }
};

}  // namespace

const Clock& SystemClock() {
  static const RealClock clock;
  return clock;
}

std::string FormatUtc(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace keel
