#include "common/terminal.h"

#include <gtest/gtest.h>

#include <vector>

namespace keel {
namespace {

TEST(TerminalTest, ColumnsOfTextAreNotItsBytes) {
  EXPECT_EQ(DisplayWidth("loss 2.5"), 8);
  EXPECT_EQ(DisplayWidth("▁▂█"), 3);
  EXPECT_EQ(DisplayWidth("日本"), 4);
  EXPECT_EQ(DisplayWidth("e\u0301"), 1);
  EXPECT_EQ(DisplayWidth("\xff\xc3"), 2);  // no UTF-8: a column a byte
  EXPECT_EQ(DisplayWidth(""), 0);
}

TEST(TerminalTest, WhatIsCutIsNeverTooWideAndNeverHalfACharacter) {
  EXPECT_EQ(FitColumns("steps", 5), "steps");
  EXPECT_EQ(FitColumns("steps", 4), "ste…");
  EXPECT_EQ(FitColumns("steps", 1), "…");
  EXPECT_EQ(FitColumns("steps", 0), "");
  // A wide character that would stand half outside is left out.
  EXPECT_EQ(FitColumns("日本語", 4), "日…");
  for (int columns = 1; columns < 12; ++columns)
    EXPECT_LE(DisplayWidth(FitColumns("a日b本c語d", columns)), columns);
}

TEST(TerminalTest, FieldsThatDoNotFitAreLeftOutFromTheEnd) {
  const std::vector<std::string> fields = {"step 7/12", "", "loss 2.5", "eta 0:01:02"};
  EXPECT_EQ(FitFields(fields, 0), "step 7/12  loss 2.5  eta 0:01:02");
  EXPECT_EQ(FitFields(fields, 32), "step 7/12  loss 2.5  eta 0:01:02");
  EXPECT_EQ(FitFields(fields, 31), "step 7/12  loss 2.5");
  EXPECT_EQ(FitFields(fields, 10), "step 7/12");
  EXPECT_EQ(FitFields(fields, 6), "step …");
}

TEST(TerminalTest, APipeIsNone) {
  EXPECT_EQ(TerminalColumns(-1), 0);
  EXPECT_EQ(TerminalRows(-1), 0);
}

}  // namespace
}  // namespace keel
