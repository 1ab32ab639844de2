#include "rollout/partial.h"

#include <gtest/gtest.h>

namespace keel::rollout {
namespace {

TEST(PartialTest, AppendJoinsSpansOfOneVersion) {
  Partial so_far{{1, 2}, {-1, -2}, {{0, 3}}};
  so_far.Append({{3}, {-3}, {{0, 3}}});
  EXPECT_EQ(so_far, (Partial{{1, 2, 3}, {-1, -2, -3}, {{0, 3}}}));
  so_far.Append({{4, 5}, {-4, -5}, {{0, 4}, {1, 6}}});
  EXPECT_EQ(so_far, (Partial{{1, 2, 3, 4, 5}, {-1, -2, -3, -4, -5}, {{0, 3}, {3, 4}, {4, 6}}}));
  Partial none;
  none.Append({{7}, {}, {{0, 1}}});
  EXPECT_EQ(none, (Partial{{7}, {}, {{0, 1}}}));
}

TEST(PartialTest, SpansThatCannotBe) {
  EXPECT_EQ(ProblemOf({}, 0), nullptr);
  EXPECT_EQ(ProblemOf({{0, 1}}, 1), nullptr);
  EXPECT_EQ(ProblemOf({{0, 1}, {3, 2}}, 4), nullptr);
  EXPECT_NE(ProblemOf({{0, 1}}, 0), nullptr);
  EXPECT_NE(ProblemOf({}, 1), nullptr);
  EXPECT_NE(ProblemOf({{1, 1}}, 2), nullptr);
  EXPECT_NE(ProblemOf({{0, 1}, {0, 2}}, 2), nullptr);
  EXPECT_NE(ProblemOf({{0, 2}, {1, 1}}, 2), nullptr);
  EXPECT_NE(ProblemOf({{0, 2}, {1, 2}}, 2), nullptr);
  EXPECT_NE(ProblemOf({{0, 1}, {2, 2}}, 2), nullptr);
}

}  // namespace
}  // namespace keel::rollout
