// WatchScreen: a terminal that is drawn over again and again, and given back as it was. Torch-free.
//
// One a process: it takes the terminal's modes, and the signals that end it. Not thread-safe.
#pragma once

#include <termios.h>

#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "common/status.h"

namespace keel::tools {

// Set by SIGINT, SIGTERM and SIGHUP from the first call on.
const std::atomic<bool>& WatchStop();

class WatchScreen {
 public:
  // Of standard input and output, both a terminal.
  WatchScreen();
  ~WatchScreen();
  WatchScreen(const WatchScreen&) = delete;
  WatchScreen& operator=(const WatchScreen&) = delete;

  // At this moment; at least 1 each.
  int columns() const;
  int rows() const;
  // Lines that fit. Nothing is written when they are those of the last time, on a terminal of the
  // same size. kIo: the terminal is gone.
  Status Draw(const std::vector<std::string>& lines);
  // Waits for a key, at most so long, or for a change of the size. False: leave (q, Ctrl-C, or
  // a signal).
  bool Wait(std::chrono::milliseconds patience);

 private:
  void TakeModes();

  termios before_{};
  std::string drawn_;
};

}  // namespace keel::tools
