#include "common/log.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"

namespace keel {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::SizeIs;

class LoggerTest : public ::testing::Test {
 protected:
  LoggerTest() {
    std::string name = (std::filesystem::temp_directory_path() / "keel-log-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    folder_ = name;
    options_.file = folder_ + "/log.txt";
  }
  ~LoggerTest() override { std::filesystem::remove_all(folder_); }
  std::vector<std::string> Lines() const {
    std::ifstream file(options_.file);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }
  std::string folder_;
  LogOptions options_;
};

constexpr char kTime[] = "[0-9]+-[0-9]+-[0-9]+T[0-9]+:[0-9]+:[0-9]+\\.[0-9]+Z ";

TEST_F(LoggerTest, OneLinePerEventWithTimeLevelRankAndStep) {
  ::testing::internal::CaptureStderr();
  options_.rank = 0;
  {
    Logger log(options_);
    log.Info("starts");
    log.set_step(12);
    log.Warning("{} of {}", 1, 2);
    log.Debug("not shown");
    log.Error("bad");
  }
  const std::string shown = ::testing::internal::GetCapturedStderr();
  const auto lines = Lines();
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_THAT(lines[0], MatchesRegex(std::string(kTime) + "info  \\[rank 0\\] starts"));
  EXPECT_THAT(lines[1], MatchesRegex(std::string(kTime) + "warn  \\[rank 0 step 12\\] 1 of 2"));
  EXPECT_THAT(lines[2], MatchesRegex(std::string(kTime) + "error \\[rank 0 step 12\\] bad"));
  // The same on stderr, which is no terminal here: without colour.
  EXPECT_EQ(shown, lines[0] + "\n" + lines[1] + "\n" + lines[2] + "\n");
}

TEST_F(LoggerTest, ADeadFileIsSaidOnce) {
  options_.file = folder_;  // a directory
  ::testing::internal::CaptureStderr();
  {
    Logger log(options_);
    log.Info("goes on");
  }
  const std::string shown = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(shown, HasSubstr("the log file " + options_.file + " cannot be opened: "));
  EXPECT_THAT(shown, HasSubstr("info  goes on\n"));
}

TEST_F(LoggerTest, AFileThatIsFullIsSaidOnceAndEndsNothing) {
  options_.file = "/dev/full";
  ::testing::internal::CaptureStderr();
  {
    Logger log(options_);
    log.Info("first");
    log.Info("second");
  }
  const std::string shown = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(shown, HasSubstr("info  first\n"));
  EXPECT_THAT(shown, HasSubstr("lines are missing in the log file /dev/full"));
  EXPECT_THAT(shown, HasSubstr("info  second\n"));
  EXPECT_EQ(shown.find("lines are missing"), shown.rfind("lines are missing"));
}

TEST_F(LoggerTest, ALongFileIsTurnedOver) {
  options_.file_bytes = 4096;
  options_.older_files = 2;
  {
    Logger log(options_);
    for (int i = 0; i < 200; ++i) log.Info("line {} of {}", i, std::string(40, 'x'));
  }
  std::string all;
  for (const char* name : {"log.2.txt", "log.1.txt", "log.txt"}) {
    std::ifstream file(folder_ + "/" + name);
    std::stringstream text;
    text << file.rdbuf();
    EXPECT_LE(text.str().size(), 4096u) << name;
    EXPECT_FALSE(text.str().empty()) << name;
    all += text.str();
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/log.3.txt"));
  EXPECT_THAT(all, HasSubstr("line 199 of"));
  EXPECT_THAT(all, HasSubstr("line 150 of"));
}

TEST_F(LoggerTest, OtherRanksSayWarningsAndErrorsUnlessAsked) {
  ::testing::internal::CaptureStderr();
  options_.rank = 3;
  {
    Logger log(options_);
    log.Info("no");
    log.Warning("yes");
    options_.all_ranks = true;
    Logger all(options_);
    all.Info("yes");
  }
  ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(Lines(), SizeIs(2));
}

TEST_F(LoggerTest, WhatAMessageQuotesCannotForgeAnEvent) {
  ::testing::internal::CaptureStderr();
  {
    Logger log(options_);
    log.Error("two\nlines \x1b[31m and \xff");
    log.Info("next");
  }
  ::testing::internal::GetCapturedStderr();
  const auto lines = Lines();
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_THAT(lines[0], HasSubstr("error two"));
  EXPECT_EQ(lines[1], "    lines \\x1b[31m and \\xff");
  EXPECT_THAT(lines[2], HasSubstr("info  next"));
}

TEST_F(LoggerTest, ThreadsDoNotMixTheirLines) {
  ::testing::internal::CaptureStderr();
  {
    Logger log(options_);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&log, t] {
        for (int i = 0; i < 200; ++i) log.Info("{}", std::string(100, static_cast<char>('a' + t)));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  ::testing::internal::GetCapturedStderr();
  const auto lines = Lines();
  ASSERT_THAT(lines, SizeIs(800));
  for (const std::string& line : lines) {
    const std::string text = line.substr(line.rfind(' ') + 1);
    ASSERT_EQ(text, std::string(100, text[0]));
  }
}

TEST(Clock, FormatsUtc) {
  const auto at = [](int64_t seconds) {
    return FormatUtc(std::chrono::system_clock::time_point(std::chrono::seconds(seconds)));
  };
  EXPECT_EQ(at(0), "1970-01-01T00:00:00Z");
  EXPECT_EQ(at(1709210096), "2024-02-29T12:34:56Z");
  EXPECT_EQ(at(4102444799), "2099-12-31T23:59:59Z");
}

TEST(Clock, AStopwatchReadsTheClockItIsGiven) {
  struct Stopped : Clock {
    std::chrono::nanoseconds now{0};
    std::chrono::nanoseconds Monotonic() const override { return now; }
    std::chrono::system_clock::time_point Wall() const override { return {}; }
    void SleepFor(std::chrono::nanoseconds) const override {}
  } clock;
  Stopwatch watch(clock);
  clock.now += std::chrono::milliseconds(250);
  EXPECT_EQ(watch.Elapsed(), 0.25);
  EXPECT_EQ(watch.Lap(), 0.25);
  clock.now += std::chrono::milliseconds(500);
  EXPECT_EQ(watch.Lap(), 0.5);
  EXPECT_EQ(watch.Elapsed(), 0);
  const auto before = SystemClock().Monotonic();
  SystemClock().SleepFor(std::chrono::milliseconds(1));
  EXPECT_GE(SystemClock().Monotonic() - before, std::chrono::milliseconds(1));
}

// Of a step's line a terminal gets what fits, which is none of what a file is for.
TEST_F(LoggerTest, ALineThatFitsIsForTheTerminalAlone) {
  const auto fit = [](int columns) { return fmt::format("fits in {}", columns); };
  for (const int columns : {0, 60}) {
    std::filesystem::remove(options_.file);
    options_.columns = columns;
    options_.rank = 0;
    ::testing::internal::CaptureStderr();
    Logger(options_).InfoFitted("the whole line", fit);
    const std::string shown = ::testing::internal::GetCapturedStderr();
    const std::string whole = std::string(kTime) + "info  \\[rank 0\\] the whole line";
    ASSERT_THAT(Lines(), SizeIs(1));
    EXPECT_THAT(Lines()[0], MatchesRegex(whole));
    if (columns == 0) {
      EXPECT_THAT(shown, MatchesRegex(whole + "\n"));
    } else {
      EXPECT_EQ(shown, "fits in 59\n") << "the last column stays free";
    }
  }
  options_.rank = 3;
  ::testing::internal::CaptureStderr();
  Logger(options_).InfoFitted("the whole line", fit);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace keel
