// The ranks of a replica meet under a name that is theirs alone, also where some were started again
// and left their words behind.

#include "trainer/rl/generation/replica_meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace keel::trainer::rl {
namespace {

constexpr std::chrono::milliseconds kLong{20'000};

std::set<std::string> Meet(const parallel::Store& store, int replica, int size) {
  std::vector<std::string> names(static_cast<size_t>(size));
  std::vector<std::thread> ranks;
  for (int r = 0; r < size; ++r) {
    ranks.emplace_back([&, r] {
      names[static_cast<size_t>(r)] = ValueOrThrow(MeetReplica(store, replica, r, size, kLong));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return {names.begin(), names.end()};
}

TEST(ReplicaMeetingTest, AllHaveOneNameAndNeverTheSameAgain) {
  const parallel::Store store = parallel::Store::InProcess();
  const std::set<std::string> first = Meet(store, 0, 3);
  const std::set<std::string> again = Meet(store, 0, 3);
  const std::set<std::string> other = Meet(store, 1, 3);
  for (const auto& names : {first, again, other}) EXPECT_EQ(names.size(), 1U);
  EXPECT_NE(first, again);
  EXPECT_NE(first, other);
}

TEST(ReplicaMeetingTest, OneThatWasStartedTwiceIsMetAsItIsNow) {
  const parallel::Store store = parallel::Store::InProcess();
  // A life of rank 1 that ended before the others came.
  EXPECT_EQ(MeetReplica(store, 0, 1, 3, std::chrono::milliseconds(1)).status().code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Meet(store, 0, 3).size(), 1U);
}

TEST(ReplicaMeetingTest, OneThatDoesNotComeIsNamed) {
  const parallel::Store store = parallel::Store::InProcess();
  const auto alone = MeetReplica(store, 2, 0, 2, std::chrono::milliseconds(100));
  EXPECT_EQ(alone.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(alone.status().message(), ::testing::HasSubstr("rank 1 of rollout replica 2"));
}

}  // namespace
}  // namespace keel::trainer::rl
