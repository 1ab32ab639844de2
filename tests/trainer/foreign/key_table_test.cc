#include "trainer/foreign/key_table.h"

#include <gtest/gtest.h>

namespace keel::trainer::foreign {
namespace {

constexpr Row kTestRows[] = {
    Taken("{a,b}.lr", "1"),
    Taken("a.map", "{}"),
    NotNeeded("a.**", "below a"),
    NotSupported("a.deep.**", "", "below a.deep"),
    NotNeeded("c.x_*", "begins with x_"),
    NotNeeded("**._target_", "a class"),
    NotNeeded("{p.,}q", "with and without p"),
    Taken("twice", ""),
    NotNeeded("twice", "again"),
    NotNeeded("t.*_a", "one"),
    NotNeeded("t.b_*", "other"),
};

std::string WhyOf(const KeyTable& table, const char* key) {
  const KeyTable::Found found = table.Find(key);
  return found.row == nullptr ? "none" : std::string(found.row->why);
}

TEST(KeyTable, TheRowThatSaysMostOfAKeyAnswersIt) {
  const KeyTable table(kTestRows);
  EXPECT_EQ(table.Find("b.lr").row, &kTestRows[0]);
  EXPECT_EQ(table.Find("b.lr").path, "b.lr");
  EXPECT_EQ(WhyOf(table, "a"), "below a");
  EXPECT_EQ(WhyOf(table, "a.other.x"), "below a");
  EXPECT_EQ(WhyOf(table, "a.deep"), "below a.deep");
  EXPECT_EQ(WhyOf(table, "a.deep.x"), "below a.deep");
  EXPECT_EQ(WhyOf(table, "ab"), "none");
  EXPECT_EQ(WhyOf(table, "c.x_1"), "begins with x_");
  EXPECT_EQ(WhyOf(table, "c.x_1.y"), "none");
  EXPECT_EQ(WhyOf(table, "z.y._target_"), "a class");
  EXPECT_EQ(WhyOf(table, "_target_"), "a class");
  EXPECT_EQ(WhyOf(table, "p.q"), "with and without p");
  EXPECT_EQ(WhyOf(table, "q"), "with and without p");
}

TEST(KeyTable, WhatStandsBelowAFreeMapIsItsKeys) {
  const KeyTable table(kTestRows);
  EXPECT_TRUE(table.IsKey("a.map"));
  EXPECT_FALSE(table.IsKey("q"));
  const KeyTable::Found found = table.Find("a.map.b.c");
  EXPECT_EQ(found.path, "a.map");
  EXPECT_EQ(found.rest, "b.c");
}

TEST(KeyTable, KnowsWhenAKeyHasSeveralAnswers) {
  const KeyTable table(kTestRows);
  EXPECT_EQ(table.Answers("a.lr"), 1);
  EXPECT_EQ(table.Answers("a.deep.x"), 1);
  EXPECT_EQ(table.Answers("none"), 0);
  EXPECT_EQ(table.Answers("twice"), 2);
  EXPECT_EQ(table.Answers("t.b_a"), 2);
}

}  // namespace
}  // namespace keel::trainer::foreign
