#include "checkpoint/commit/retention.h"

#include <gmock/gmock.h>

#include <random>
#include <set>

namespace keel::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<CommittedStep> Steps(std::initializer_list<int64_t> steps) {
  std::vector<CommittedStep> committed;
  for (const int64_t step : steps)
    committed.push_back({step, static_cast<int64_t>(committed.size()) + 1, {}, false});
  return committed;
}

TEST(Retention, WithoutALimitNothingGoes) {
  EXPECT_THAT(StepsToRemove(Steps({1, 2, 3}), {}), IsEmpty());
  EXPECT_THAT(StepsToRemove({}, {.keep_latest = 1}), IsEmpty());
}

TEST(Retention, TheNewestStay) {
  EXPECT_THAT(StepsToRemove(Steps({10, 20, 30, 40}), {.keep_latest = 2}), ElementsAre(10, 20));
  EXPECT_THAT(StepsToRemove(Steps({10, 20}), {.keep_latest = 5}), IsEmpty());
  // By order of commits, not by number: 15 is what the run did last.
  EXPECT_THAT(StepsToRemove(Steps({10, 20, 30, 15}), {.keep_latest = 1}), ElementsAre(10, 20, 30));
}

TEST(Retention, ARuleOnlyAddsToWhatIsKept) {
  std::vector<CommittedStep> committed = Steps({10, 20, 30, 40, 50, 60});
  committed[1].pinned = true;
  committed[2].metric = 0.5;
  committed[3].metric = 0.1;
  committed[4].metric = 0.9;
  EXPECT_THAT(StepsToRemove(committed, {.keep_latest = 1}), ElementsAre(10, 30, 40, 50));
  EXPECT_THAT(StepsToRemove(committed, {.keep_latest = 1, .keep_best = 1}),
              ElementsAre(10, 30, 50));
  EXPECT_THAT(
      StepsToRemove(committed, {.keep_latest = 1, .keep_best = 1, .higher_is_better = true}),
      ElementsAre(10, 30, 40));
  EXPECT_THAT(StepsToRemove(committed, {.keep_latest = 1, .keep_every = 50}),
              ElementsAre(10, 30, 40));
}

TEST(Retention, TheNewestIsNeverAmongThem) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<CommittedStep> committed;
    std::set<int64_t> used;
    for (uint64_t i = 0; i <= random() % 8; ++i) {
      const auto step = static_cast<int64_t>(random() % 100);
      if (!used.insert(step).second) continue;
      committed.push_back(
          {step, static_cast<int64_t>(committed.size()) + 1, {}, random() % 4 == 0});
      if (random() % 2 == 0) committed.back().metric = static_cast<double>(random() % 10);
    }
    RetentionPolicy policy;
    policy.keep_latest = static_cast<int>(random() % 3);  // 0 is taken as 1
    policy.keep_best = static_cast<int>(random() % 3);
    policy.keep_every = static_cast<int64_t>(random() % 20);
    const std::vector<int64_t> removed = StepsToRemove(committed, policy);
    EXPECT_EQ(std::count(removed.begin(), removed.end(), committed.back().step), 0);
    const size_t latest =
        std::min(committed.size(), static_cast<size_t>(std::max(1, *policy.keep_latest)));
    EXPECT_LE(removed.size(), committed.size() - latest);
    for (const CommittedStep& one : committed) {
      if (one.pinned) {
        EXPECT_EQ(std::count(removed.begin(), removed.end(), one.step), 0);
      }
    }
  }
}

}  // namespace
}  // namespace keel::checkpoint
