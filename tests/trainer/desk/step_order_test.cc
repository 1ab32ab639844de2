// The order of the steps, by ledgers that are written down here.
#include "trainer/desk/step_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace keel::trainer::desk {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Version v holds the updates of v - 1 steps.
Ledger LedgerAfter(int64_t steps) {
  Ledger ledger;
  ledger.steps = steps;
  for (int64_t version = 1; version <= steps + 1; ++version) ledger.versions[version] = version - 1;
  return ledger;
}

void Finish(Ledger& ledger, int64_t position, int sample, int64_t version) {
  Finished finished;
  finished.response.tokens = {1};
  finished.spans = {{0, version}};
  ledger.samples[{position, sample}].finished = std::move(finished);
}

void Begin(Ledger& ledger, int64_t position, int sample, int64_t version) {
  Partial& partial = ledger.samples[{position, sample}].partial;
  partial.tokens = {1};
  partial.spans = {{0, version}};
}

TEST(StepOrderTest, APositionIsDueWhenThoseThatAreOpenBeforeItAreTrained) {
  const DeskOptions options{.batch = 2};
  Ledger ledger = LedgerAfter(5);
  ledger.frontier = 10;
  ledger.taken = {11, 13};
  const StepOrder order(options, ledger);
  EXPECT_EQ(order.Due(10), 5);
  EXPECT_EQ(order.Due(12), 5);  // behind 10 alone
  EXPECT_EQ(order.Due(14), 6);
  EXPECT_EQ(order.Due(15), 6);
  EXPECT_EQ(order.Due(16), 7);
}

TEST(StepOrderTest, InOrderAStepWaitsForEachSampleOfItsPositions) {
  const DeskOptions options{.batch = 2, .samples = {0, 1}};
  Ledger ledger = LedgerAfter(0);
  ledger.taken = {1};
  const StepOrder order(options, ledger);
  for (const int64_t position : {0, 2, 3}) Finish(ledger, position, 0, 1);
  for (const int64_t position : {2, 3}) Finish(ledger, position, 1, 1);
  EXPECT_THAT(order.NextInOrder(), IsEmpty());
  Finish(ledger, 0, 1, 1);
  EXPECT_THAT(order.NextInOrder(), ElementsAre(0, 2));
}

TEST(StepOrderTest, WhatIsReadyIsTakenBySoonestLimit) {
  const DeskOptions options{.batch = 1, .max_staleness = 2, .ready_first = true};
  Ledger ledger = LedgerAfter(2);
  const StepOrder order(options, ledger);
  Finish(ledger, 4, 0, 3);
  Finish(ledger, 7, 0, 2);
  EXPECT_EQ(order.LimitsOfBegun(), (StepOrder::Limits{{4, 4}, {7, 3}}));
  EXPECT_THAT(order.NextReady(order.LimitsOfBegun()), ElementsAre(7));
  // One whose limit is the present step, and which is not complete, holds it.
  Begin(ledger, 5, 0, 1);
  EXPECT_THAT(order.NextReady(order.LimitsOfBegun()), IsEmpty());
  Finish(ledger, 5, 0, 1);
  EXPECT_THAT(order.NextReady(order.LimitsOfBegun()), ElementsAre(5));
}

TEST(StepOrderTest, ThePositionsLimitIsThatOfItsOldestSample) {
  const DeskOptions options{.samples = {0, 1}, .max_staleness = 1, .ready_first = true};
  Ledger ledger = LedgerAfter(3);
  const StepOrder order(options, ledger);
  Begin(ledger, 0, 0, 4);
  StepOrder::Limits limits = order.LimitsOfBegun();
  EXPECT_EQ(limits.at(0), 4);
  order.Begin(0, 3, &limits);
  EXPECT_EQ(limits.at(0), 3);
  order.Begin(0, 4, &limits);
  EXPECT_EQ(limits.at(0), 3);
}

TEST(StepOrderTest, ALedgerWhoseSamplesCannotKeepTheirLimitsIsRefused) {
  for (const bool ready_first : {false, true}) {
    const DeskOptions options{.max_staleness = 1, .ready_first = ready_first};
    Ledger ledger = LedgerAfter(3);
    const StepOrder order(options, ledger);
    Finish(ledger, 0, 0, 3);
    EXPECT_TRUE(order.CheckAges().ok());
    Begin(ledger, 1, 0, 3);  // its limit is step 3, too, which trains one
    EXPECT_EQ(order.CheckAges().code(), StatusCode::kInvalidData);
    EXPECT_THAT(order.CheckAges().message(),
                HasSubstr("position 1 would be 2 steps old when it is trained"));
  }
}

// Every rule at once, by playing the steps that follow: whatever is begun where it fits, and taken
// when it may be, is trained in its time, even where each straggler takes as long as it can.
TEST(StepOrderTest, WhatFitsIsTrainedInItsTime) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
    const DeskOptions options{
        .batch = 1 + below(3), .max_staleness = below(4), .ready_first = true};
    Ledger ledger;
    ledger.versions[1] = 0;
    const StepOrder order(options, ledger);
    StepOrder::Limits begun;  // and not taken
    int64_t next = 0;
    for (int64_t turn = 0; ledger.steps < 30; ++turn) {
      ASSERT_LT(turn, 10'000) << seed << ": the steps stand still";
      const auto newest = *ledger.versions.rbegin();
      if (newest.second < ledger.steps && below(2) == 0)
        ledger.versions[newest.first + 1] = ledger.steps;
      for (int64_t tries = below(6); tries > 0; --tries) {
        if (!order.Fits(next, ledger.versions.rbegin()->second, order.LimitsOfBegun())) break;
        Begin(ledger, next, 0, ledger.versions.rbegin()->first);
        begun[next++] = ledger.versions.rbegin()->second + options.max_staleness;
      }
      ASSERT_EQ(order.LimitsOfBegun(), begun);
      ASSERT_TRUE(order.CheckAges().ok()) << seed << ": " << order.CheckAges().message();
      if (!begun.empty()) {
        auto some = begun.begin();
        std::advance(some, below(std::ssize(begun)));
        Ledger::Entry& entry = ledger.samples.at({some->first, 0});
        if (!entry.finished) {
          entry.finished = Finished{{}, std::exchange(entry.partial, {}).spans};
        }
      }
      const std::vector<int64_t> batch = order.NextReady(order.LimitsOfBegun());
      if (batch.empty()) continue;
      ASSERT_EQ(std::ssize(batch), options.batch);
      for (const int64_t position : batch) {
        ASSERT_LE(ledger.steps, begun.at(position)) << seed;
        begun.erase(position);
        ledger.samples.erase({position, 0});
        ledger.taken.insert(position);
      }
      while (ledger.taken.erase(ledger.frontier) > 0) ++ledger.frontier;
      ++ledger.steps;
    }
  }
}

}  // namespace
}  // namespace keel::trainer::desk
