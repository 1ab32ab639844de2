// Ten thousand asynchronous runs in which workers and trainers die, messages are lost, late and
// repeated: the invariants of desk_run.cc hold in each. KEEL_SEEDS: so many.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/support/nightly.h"
#include "tests/support/sanitized.h"
#include "tests/trainer/desk/desk_run.h"

namespace keel::trainer::desk::testing {
namespace {

TEST(DeskSimulation, NoSampleIsLostTrainedTwiceOrTooOld) {
  const char* wanted = std::getenv("KEEL_SEEDS");
  const int64_t ordinary = keel::testing::kSanitized ? 1'000 : 10'000;
  const int64_t usual = keel::testing::Nightly() ? 200'000 : ordinary;
  const int64_t seeds = wanted != nullptr ? std::stoll(wanted) : usual;
  DeskRunReport all;
  for (int64_t seed = 0; seed < seeds; ++seed) {
    const DeskRunReport report = RunDesk(static_cast<uint64_t>(seed));
    ASSERT_EQ(report.wrong, "") << "seed " << seed;
    all.events += report.events;
    all.steps += report.steps;
    all.crashes += report.crashes;
    all.lost_workers += report.lost_workers;
    all.stale_words += report.stale_words;
    all.reassigned_tokens += report.reassigned_tokens;
    all.asked_to_end += report.asked_to_end;
    all.ended_by_desk += report.ended_by_desk;
    all.out_of_turn += report.out_of_turn;
    all.mixed += report.mixed;
    all.oldest = std::max(all.oldest, report.oldest);
  }
  // The weather was as bad as it should be.
  EXPECT_GT(all.steps, 4 * seeds);
  EXPECT_GT(all.crashes, seeds / 20);
  EXPECT_GT(all.lost_workers, seeds);
  EXPECT_GT(all.stale_words, seeds);
  EXPECT_GT(all.reassigned_tokens, seeds);
  EXPECT_GT(all.asked_to_end, seeds / 4);
  EXPECT_GT(all.ended_by_desk, seeds / 20);
  EXPECT_GT(all.out_of_turn, seeds / 4);
  EXPECT_GT(all.mixed, seeds);
  EXPECT_EQ(all.oldest, 3);
}

TEST(DeskSimulation, ASeedIsAlwaysTheSameRun) {
  for (const uint64_t seed : {3U, 77U, 1234U}) {
    const DeskRunReport first = RunDesk(seed), again = RunDesk(seed);
    EXPECT_EQ(first.events, again.events);
    EXPECT_EQ(first.stale_words, again.stale_words);
  }
}

}  // namespace
}  // namespace keel::trainer::desk::testing
