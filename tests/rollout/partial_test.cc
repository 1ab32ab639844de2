#include "rollout/partial.h"

#include <gtest/gtest.h>

#include <algorithm>

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

TEST(PartialTest, FromIsWhatAppendAdds) {
  const Partial whole{{1, 2, 3, 4, 5}, {-1, -2, -3, -4, -5}, {{0, 3}, {2, 4}, {4, 6}}};
  EXPECT_EQ(whole.From(0), whole);
  EXPECT_EQ(whole.From(2), (Partial{{3, 4, 5}, {-3, -4, -5}, {{0, 4}, {2, 6}}}));
  EXPECT_EQ(whole.From(3), (Partial{{4, 5}, {-4, -5}, {{0, 4}, {1, 6}}}));
  EXPECT_EQ(whole.From(5), Partial());
  for (int64_t cut = 0; cut <= whole.size(); ++cut) {
    Partial begun;
    for (int64_t i = 0; i < cut; ++i) {
      begun.tokens.push_back(whole.tokens[static_cast<size_t>(i)]);
      begun.log_probs.push_back(whole.log_probs[static_cast<size_t>(i)]);
    }
    for (const VersionSpan& span : whole.spans)
      if (span.begin < cut) begun.spans.push_back(span);
    if (cut > 0) {
      Partial until = whole.Until(cut);
      until.tool_memory.clear();
      EXPECT_EQ(until, begun) << cut;
    }
    begun.Append(whole.From(cut));
    EXPECT_EQ(begun, whole) << cut;
  }
}

// A report may end within what a tool gave.
TEST(PartialTest, AGivenRangeThatWasCutIsOneAgain) {
  const Partial whole{
      {1, 2, 3, 4, 5, 6, 7}, {-1, -2, 0, 0, -5, 0, -7}, {{0, 3}, {4, 4}}, {{2, 4}, {5, 6}}, "{}"};
  EXPECT_EQ(whole.From(0), whole);
  EXPECT_EQ(whole.From(3).given, (std::vector<TokenRange>{{0, 1}, {2, 3}}));
  EXPECT_EQ(whole.From(4).given, (std::vector<TokenRange>{{1, 2}}));
  EXPECT_EQ(whole.From(6).given, (std::vector<TokenRange>{}));
  for (int64_t cut = 0; cut <= whole.size(); ++cut) {
    Partial begun;
    for (int64_t i = 0; i < cut; ++i) {
      begun.tokens.push_back(whole.tokens[static_cast<size_t>(i)]);
      begun.log_probs.push_back(whole.log_probs[static_cast<size_t>(i)]);
    }
    for (const VersionSpan& span : whole.spans)
      if (span.begin < cut) begun.spans.push_back(span);
    for (const TokenRange& range : whole.given)
      if (range.begin < cut) begun.given.push_back({range.begin, std::min(range.end, cut)});
    if (cut > 0) {
      Partial until = whole.Until(cut);
      until.tool_memory.clear();
      EXPECT_EQ(until, begun) << cut;
    }
    begun.Append(whole.From(cut));
    EXPECT_EQ(begun, whole) << cut;
  }
}

TEST(PartialTest, ToolMemoryIsTheLatest) {
  Partial so_far{{1}, {}, {{0, 1}}, {}, "old"};
  so_far.Append({{2}, {}, {{0, 1}}});
  EXPECT_EQ(so_far.tool_memory, "old");
  so_far.Append({{3}, {}, {{0, 1}}, {}, "latest"});
  EXPECT_EQ(so_far.tool_memory, "latest");
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
