// The save protocol in a simulated world, from a seed: see simulation/sim_run.h.
//
//   KEEL_SEED=n ./simulation_test       that seed alone, saying what happens
//   KEEL_SEEDS=n ./simulation_test      that many seeds
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tests/checkpoint/simulation/sim_run.h"
#include "tests/support/nightly.h"

namespace keel::checkpoint::testing {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeeds = 500;
#else
constexpr uint64_t kSeeds = 5'000;
#endif
constexpr uint64_t kNightlySeeds = 200'000;

uint64_t NumberFrom(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(Simulation, EverySeed) {
  FiberStacks stacks;
  if (std::getenv("KEEL_SEED") != nullptr) {
    SimRun run(NumberFrom("KEEL_SEED", 0), stacks, true);
    EXPECT_EQ(run.Run(), "");
    return;
  }
  const uint64_t seeds =
      NumberFrom("KEEL_SEEDS", keel::testing::Nightly() ? kNightlySeeds : kSeeds);
  SimCounts counts;
  int failures = 0;
  for (uint64_t seed = 0; seed < seeds && failures < 5; ++seed) {
    SimRun run(seed, stacks, false);
    const std::string violation = run.Run();
    counts.Add(run.counts());
    if (violation.empty()) continue;
    ++failures;
    ADD_FAILURE() << violation << "\n  KEEL_SEED=" << seed << " ./simulation_test";
  }
  std::printf("%llu seeds: %s\n", static_cast<unsigned long long>(seeds),
              counts.Describe().c_str());
  // What was looked for did happen; of a few seeds chance may leave something out.
  if (seeds < 1'000) return;
  const uint64_t least = seeds < 10'000 ? seeds / 20 : std::max<uint64_t>(1'000, seeds / 20);
  for (const int64_t count :
       {counts.committed, counts.cancelled, counts.dead_ranks, counts.power_cuts,
        counts.disk_errors, counts.late_ranks, counts.reckless_found}) {
    EXPECT_GT(static_cast<uint64_t>(count), least);
  }
}

// A failure is of use only if its seed shows it again.
TEST(Simulation, ASeedReplaysExactly) {
  FiberStacks stacks;
  for (uint64_t seed = 1; seed < 60; ++seed) {
    SimRun once(seed, stacks, false);
    SimRun again(seed, stacks, false);
    EXPECT_EQ(once.Run(), again.Run());
    EXPECT_EQ(once.digest(), again.digest()) << "seed " << seed;
    EXPECT_NE(once.digest(), 0U);
  }
}

}  // namespace
}  // namespace keel::checkpoint::testing
