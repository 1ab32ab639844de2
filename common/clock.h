// Clocks, passed in so that tests can stop time. Decisions use the monotonic clock alone; the wall
// clock is for people.
#pragma once

#include <chrono>
#include <string>

namespace keel {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual std::chrono::nanoseconds Monotonic() const = 0;
  virtual std::chrono::system_clock::time_point Wall() const = 0;
  virtual void SleepFor(std::chrono::nanoseconds duration) const = 0;
};

// The machine's clocks. The object has static storage duration and no state.
const Clock& SystemClock();

// Seconds between two readings.
inline double Seconds(std::chrono::nanoseconds d) {
  return std::chrono::duration<double>(d).count();
}
// "2026-11-21T07:00:00Z"
std::string FormatUtc(std::chrono::system_clock::time_point time);

class Stopwatch {
 public:
  explicit Stopwatch(const Clock& clock = SystemClock())
      : clock_(&clock), start_(clock.Monotonic()) {}
  double Elapsed() const { return Seconds(clock_->Monotonic() - start_); }
  // Seconds since the last Lap (or construction), and starts the next.
  double Lap() {
    const auto now = clock_->Monotonic();
    const double s = Seconds(now - start_);
    start_ = now;
    return s;
  }

 private:
  const Clock* clock_;
  std::chrono::nanoseconds start_;
};

}  // namespace keel
