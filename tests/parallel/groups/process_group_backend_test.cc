// For how long backends are to wait, and what a failure of theirs is told as.

#include "parallel/groups/process_group_backend.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <stdexcept>

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

// It is this rank's memory that has to be found, and no peer that was lost.
TEST(BackendFailure, IsOfThisProcessWhereItHadNoMemory) {
  GroupOptions options;
  options.name = "dp";
  options.deadline = milliseconds(2'000);
  const std::atomic<int64_t> step = 7;
  options.step = &step;
  const WhereInGroup where(options, 3);
  EXPECT_EQ(where.Failure("all-gather", std::bad_alloc()).ToString(),
            "exhausted: all-gather in group dp on rank 3 step 7: out of memory");
  EXPECT_EQ(
      where
          .Failure("all-gather", std::runtime_error("DefaultCPUAllocator: can't allocate memory: "
                                                    "you tried to allocate 64 bytes. Error"))
          .ToString(),
      "exhausted: all-gather in group dp on rank 3 step 7: out of memory: tried to allocate 64 "
      "bytes");
  EXPECT_EQ(where.Failure("all-gather", std::runtime_error("Connection closed by peer\n at x"))
                .ToString(),
            "unavailable: all-gather in group dp on rank 3 step 7: lost a peer (Connection closed "
            "by peer)");
  EXPECT_EQ(where.Failure("all-gather", std::runtime_error("Timed out waiting")).code(),
            StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace keel::parallel
