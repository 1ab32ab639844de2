#include "tools/launch/stop_requests.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "tools/launch/launcher.h"

namespace keel::tools {
namespace {

using std::chrono::milliseconds;
constexpr StopRequests::Clock::time_point kStart{std::chrono::hours(5)};

// A save may take minutes, and whoever preempts the job ends it himself.
TEST(StopRequestsTest, TheFirstGivesTheRanksTheTimeTheyNeed) {
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1}) {
    StopRequests requests(LaunchOptions().shutdown_timeout);
    EXPECT_EQ(requests.number(), 0);
    EXPECT_FALSE(requests.Add(number, kStart)) << number;
    EXPECT_EQ(requests.number(), number);
  }
}

TEST(StopRequestsTest, OneWithinASecondIsTheSame) {
  StopRequests requests({});
  EXPECT_FALSE(requests.Add(SIGTERM, kStart));
  EXPECT_FALSE(requests.Add(SIGTERM, kStart + milliseconds(1)));
  EXPECT_FALSE(requests.Add(SIGUSR1, kStart + milliseconds(1000)));
  EXPECT_EQ(requests.Add(SIGTERM, kStart + milliseconds(1001)), kShutdownTimeout)
      << "counted from the first";
}

TEST(StopRequestsTest, ALaterOneEndsTheRanks) {
  for (const int first : {SIGTERM, SIGUSR1}) {
    for (const int second : {SIGTERM, SIGUSR1}) {
      StopRequests requests({});
      EXPECT_FALSE(requests.Add(first, kStart));
      EXPECT_EQ(requests.Add(second, kStart + milliseconds(1500)), kShutdownTimeout);
      EXPECT_EQ(requests.number(), second);
    }
  }
}

TEST(StopRequestsTest, AGivenTimeoutCountsFromTheFirst) {
  StopRequests requests(milliseconds(5'000));
  EXPECT_EQ(requests.Add(SIGTERM, kStart), milliseconds(5'000));
  EXPECT_EQ(requests.Add(SIGTERM, kStart + milliseconds(1500)), milliseconds(5'000));
  // SIGUSR1 only asks: what ends the job comes after it.
  StopRequests asked(milliseconds(5'000));
  EXPECT_FALSE(asked.Add(SIGUSR1, kStart));
  EXPECT_EQ(asked.Add(SIGUSR1, kStart + milliseconds(1500)), milliseconds(5'000));
}

TEST(StopRequestsTest, Usr2IsNone) {
  StopRequests requests(milliseconds(5'000));
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(requests.Add(SIGUSR2, kStart + milliseconds(2000 * i)));
  EXPECT_EQ(requests.number(), 0);
}

}  // namespace
}  // namespace keel::tools
