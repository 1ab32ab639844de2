#include "common/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "common/terminal.h"

namespace keel {
namespace {

class SetClock final : public Clock {
 public:
  std::chrono::nanoseconds Monotonic() const override { return now; }
  std::chrono::system_clock::time_point Wall() const override { return {}; }
  void SleepFor(std::chrono::nanoseconds duration) const override { now += duration; }
  mutable std::chrono::nanoseconds now{0};
};

// A terminal whose other end is read.
class PseudoTerminal {
 public:
  explicit PseudoTerminal(int columns) : far_(posix_openpt(O_RDWR | O_NOCTTY)) {
    if (far_ < 0 || grantpt(far_) != 0 || unlockpt(far_) != 0) throw std::runtime_error("no pty");
    near_ = open(ptsname(far_), O_RDWR | O_NOCTTY);
    Resize(columns);
    fcntl(far_, F_SETFL, O_NONBLOCK);
  }
  ~PseudoTerminal() {
    close(near_);
    close(far_);
  }
  void Resize(int columns) {
    winsize size{24, static_cast<unsigned short>(columns), 0, 0};
    ioctl(near_, TIOCSWINSZ, &size);
  }
  int fd() const { return near_; }
  std::string Read() {
    std::string text;
    std::array<char, 4096> piece;
    for (ssize_t got; (got = read(far_, piece.data(), piece.size())) > 0;)
      text.append(piece.data(), static_cast<size_t>(got));
    return text;
  }

 private:
  int far_, near_ = -1;
};

TEST(ProgressTest, ShareRateAndTimeLeft) {
  SetClock clock;
  Progress bar({"verify", int64_t{4} << 30, Progress::Unit::kBytes, "", -1, &clock});
  clock.now = std::chrono::seconds(10);
  bar.Set(int64_t{1} << 30);
  EXPECT_EQ(
      bar.Line(100),
      "verify   25 % |███████▌                      |  1.0 GiB/4.0 GiB  102.4 MiB/s  0:30 left");
  // Less room: a shorter bar, then none, and never more columns than there are.
  EXPECT_EQ(bar.Line(73),
            "verify   25 % |████            |  1.0 GiB/4.0 GiB  102.4 MiB/s  0:30 left");
  EXPECT_EQ(bar.Line(60), "verify   25 %   1.0 GiB/4.0 GiB  102.4 MiB/s  0:30 left");
  for (int columns = 1; columns < 90; ++columns)
    EXPECT_LE(DisplayWidth(bar.Line(columns)), columns);
  bar.Set(int64_t{4} << 30);
  EXPECT_NE(bar.Line(80).find("100 %"), std::string::npos);
}

TEST(ProgressTest, OfAnUnknownTotalThereIsNoShareAndNoTimeLeft) {
  SetClock clock;
  Progress bar({"tokenize", 0, Progress::Unit::kCount, "rows", -1, &clock});
  clock.now = std::chrono::seconds(4);
  bar.Set(200'000);
  EXPECT_EQ(bar.Line(80), "tokenize  200.0k rows  50000/s  0:04");
  // More than the total is a total that was wrong.
  bar.SetTotal(100'000);
  EXPECT_EQ(bar.Line(80), "tokenize  200.0k rows  50000/s  0:04");
  bar.SetTotal(400'000);
  EXPECT_NE(bar.Line(80).find(" 50 % "), std::string::npos);
  EXPECT_NE(bar.Line(80).find("0:04 left"), std::string::npos);
}

TEST(ProgressTest, OneLineThatIsDrawnOverSeldomAndTakenAway) {
  SetClock clock;
  PseudoTerminal terminal(60);
  {
    Progress bar({"load", 1000, Progress::Unit::kCount, "", terminal.fd(), &clock});
    // Work that is over at once shows nothing.
    bar.Set(10);
    EXPECT_EQ(terminal.Read(), "");
    int drawn = 0;
    for (int i = 0; i < 400; ++i) {
      clock.now += std::chrono::milliseconds(10);
      bar.Add(2);
      const std::string text = terminal.Read();
      if (text.empty()) continue;
      ++drawn;
      EXPECT_EQ(text.front(), '\r');
      EXPECT_EQ(text.find('\n'), std::string::npos);
      EXPECT_EQ(text.substr(text.size() - 3), "\x1b[K");
      EXPECT_LT(DisplayWidth(text.substr(1, text.size() - 4)), 60);
    }
    EXPECT_EQ(drawn, 15);  // in 4 s, four a second after the first half
    // As wide as the terminal is now.
    terminal.Resize(20);
    clock.now += std::chrono::seconds(1);
    bar.Add();
    EXPECT_LT(DisplayWidth(terminal.Read().substr(1)) - 3, 20);
    bar.Hide();
    EXPECT_EQ(terminal.Read(), "\r\x1b[K");
    bar.Hide();
    EXPECT_EQ(terminal.Read(), "");
    clock.now += std::chrono::seconds(1);
    bar.Add();
    terminal.Read();
  }
  EXPECT_EQ(terminal.Read(), "\r\x1b[K");
}

TEST(ProgressTest, WhatIsNoTerminalGetsNothing) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  {
    SetClock clock;
    Progress bar({"load", 10, Progress::Unit::kCount, "", ends[1], &clock});
    clock.now = std::chrono::seconds(100);
    bar.Add(5);
  }
  close(ends[1]);
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 0);
  close(ends[0]);
}

TEST(ProgressTest, ThreadsAddUp) {
  Progress bar({"x", 0, Progress::Unit::kCount, "", -1});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 10'000; ++i) bar.Add();
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(bar.Line(80).substr(0, 10), "x  40000  ");
}

}  // namespace
}  // namespace keel
