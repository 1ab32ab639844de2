#include "trainer/metrics/console_line.h"

#include <gtest/gtest.h>

#include "common/terminal.h"

namespace keel::trainer {
namespace {

const ConsoleLine kLine = {{"step   7/120"},     {"norm    1.500", 2}, {"loss   2.5000"},
                           {"mem  1.50 GiB", 2}, {"eta 1:02:03", 1},   {""}};

TEST(ConsoleLineTest, TheLeastImportantFieldGoesFirst) {
  EXPECT_EQ(WholeText(kLine),
            "step   7/120  norm    1.500  loss   2.5000  mem  1.50 GiB  eta 1:02:03");
  EXPECT_EQ(FittedText(kLine, 70), WholeText(kLine));
  // Of two that are as unimportant, the one further right.
  EXPECT_EQ(FittedText(kLine, 69), "step   7/120  norm    1.500  loss   2.5000  eta 1:02:03");
  EXPECT_EQ(FittedText(kLine, 54), "step   7/120  loss   2.5000  eta 1:02:03");
  EXPECT_EQ(FittedText(kLine, 39), "step   7/120  loss   2.5000");
}

TEST(ConsoleLineTest, WhatIsKeptLosesItsPaddingAndThenItsEnd) {
  EXPECT_EQ(FittedText(kLine, 26), "step 7/120 loss 2.5000");
  EXPECT_EQ(FittedText(kLine, 15), "step 7/120 los…");
  EXPECT_EQ(FittedText(kLine, 1), "…");
}

TEST(ConsoleLineTest, NoWidthIsExceeded) {
  for (int columns = 1; columns < 80; ++columns)
    EXPECT_LE(DisplayWidth(FittedText(kLine, columns)), columns) << columns;
}

}  // namespace
}  // namespace keel::trainer
