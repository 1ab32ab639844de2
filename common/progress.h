// Progress: a bar with rate and time to go, for work that a person waits for. Torch-free.
//
// One line on a terminal, drawn over itself four times a second at most, cut to the terminal's
// width at that moment, and taken away at the end; what is no terminal gets nothing. Where the
// total is not known there is neither bar nor time. Thread-safe; a call that draws nothing costs an
// atomic addition and a look at the clock.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "common/clock.h"

namespace keel {

class Progress {
 public:
  // How amounts are written.
  enum class Unit { kCount, kBytes };
  struct Options {
    std::string what;   // "verify"
    int64_t total = 0;  // 0: not known
    Unit unit = Unit::kCount;
    std::string of;  // of counts: "rows"
    // Where it is drawn: a terminal's descriptor. Of another nothing is drawn; -1: nowhere.
    int fd = 2;
    const Clock* clock = &SystemClock();
  };
  explicit Progress(Options options);
  ~Progress();  // Done()
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Add(int64_t amount = 1) { Draw(done_.fetch_add(amount) + amount); }
  void Set(int64_t done) {
    done_ = done;
    Draw(done);
  }
  // Once it is known, or another than was thought.
  void SetTotal(int64_t total) { total_ = total; }
  // The line is taken away; for what is printed meanwhile, and at the end. The next call that moves
  // the bar draws it again.
  void Hide();
  void Done();

  // The line as it stands, of `columns`: "verify  37 %|███▋      | 1.2/3.2 GiB  410.0 MiB/s  0:05".
  std::string Line(int columns) const;

 private:
  void Draw(int64_t done);
  std::string Amount(double value) const;

  const Options options_;
  const bool shown_;
  std::atomic<int64_t> done_{0}, total_;
  std::chrono::nanoseconds begin_;
  std::atomic<int64_t> next_ns_;  // when it may be drawn again
  std::mutex mutex_;              // of what is written
  bool drawn_ = false;
  bool over_ = false;
};

}  // namespace keel
