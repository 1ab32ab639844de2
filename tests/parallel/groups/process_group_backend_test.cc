// For how long backends are to wait.

#include "parallel/groups/process_group_backend.h"

#include <gtest/gtest.h>

namespace keel::parallel {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// A backend takes 0 for no limit at all. A thread that was not run for some time comes back behind
// the end that it waits for.
TEST(BackendLimit, ThatIsOverIsNeverWithoutAnEnd) {
  for (int left_us = -5'000; left_us <= 0; left_us += 100)
    EXPECT_EQ(LimitOf(microseconds(left_us)), milliseconds(1)) << left_us;
  EXPECT_EQ(LimitOf(std::chrono::hours(-1)), milliseconds(1));
}

TEST(BackendLimit, IsNoShorterThanWhatIsLeft) {
  for (const int left_us : {1, 999, 1'000, 1'500, 250'000})
    EXPECT_GE(LimitOf(microseconds(left_us)), microseconds(left_us)) << left_us;
}

}  // namespace
}  // namespace keel::parallel
