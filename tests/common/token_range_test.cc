#include "common/token_range.h"

#include <gtest/gtest.h>

namespace keel {
namespace {

TEST(TokenRangeTest, RangesAscendAndLieApart) {
  using Ranges = std::vector<TokenRange>;
  EXPECT_EQ(ProblemOf(Ranges{}, 0), nullptr);
  EXPECT_EQ(ProblemOf(Ranges{{0, 4}}, 4), nullptr);
  EXPECT_EQ(ProblemOf(Ranges{{1, 2}, {3, 4}}, 4), nullptr);
  EXPECT_NE(ProblemOf(Ranges{{1, 1}}, 4), nullptr);
  EXPECT_NE(ProblemOf(Ranges{{2, 1}}, 4), nullptr);
  EXPECT_NE(ProblemOf(Ranges{{-1, 1}}, 4), nullptr);
  EXPECT_NE(ProblemOf(Ranges{{0, 5}}, 4), nullptr);
  EXPECT_NE(ProblemOf(Ranges{{0, 2}, {2, 3}}, 4), nullptr);
  EXPECT_NE(ProblemOf(Ranges{{2, 3}, {0, 1}}, 4), nullptr);
  EXPECT_NE(ProblemOf(Ranges{{0, INT64_MAX}}, 4), nullptr);
}

}  // namespace
}  // namespace keel
