#include "trainer/rl/sample_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/text.h"

namespace keel::trainer::rl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Response Answer(const std::string& text) {
  Response response;
  response.row = 7;
  response.score = 0.5;
  response.text = text;
  return response;
}

TEST(SampleLinesTest, ScorePromptAndAnswer) {
  EXPECT_EQ(SampleLines(Answer("4"), "2+2?\n"),
            "row 7  reward 0.500\n  prompt  2+2?\\n\n  answer  4");
  Response failed = Answer("4");
  failed.error = "the judge\x1b[2J is gone";
  EXPECT_EQ(SampleLines(failed, ""),
            "row 7  no reward: the judge\\x1b[2J is gone\n  prompt  \n  answer  4");
}

// Where a prompt asks and where an answer ends is what one looks for.
TEST(SampleLinesTest, OfALongTextTheMiddleIsCutOut) {
  const std::string text = "begin" + std::string(100'000, 'x') + "the end";
  const std::string lines = SampleLines(Answer(text), text);
  EXPECT_LT(lines.size(), 1200u);
  EXPECT_THAT(lines, HasSubstr("  answer  begin"));
  EXPECT_THAT(lines, HasSubstr(" [... 99512 bytes ...] "));
  EXPECT_THAT(lines, ::testing::EndsWith("the end"));
}

TEST(SampleLinesTest, WhateverAModelWritesIsThreeLinesOfText) {
  std::string all;
  for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
  std::string directions = "\u202e\u2028\u2066 ü 好";
  // At every place where a cut may fall.
  for (size_t shift = 0; shift < 8; ++shift) {
    std::string text = std::string(shift, '.');
    while (text.size() < 5000) text += all + directions + "好好好好好好好好";
    const std::string lines = SampleLines(Answer(text), text);
    EXPECT_EQ(std::ranges::count(lines, '\n'), 2);
    EXPECT_EQ(FindNotUtf8(lines), std::string::npos);
    EXPECT_TRUE(std::ranges::none_of(
        lines, [](unsigned char c) { return (c < 0x20 && c != '\n') || c == 0x7f; }));
    EXPECT_THAT(lines, Not(HasSubstr("\u202e")));
    EXPECT_LT(lines.size(), 5000u);
  }
}

TEST(SampleLinesTest, NoCharacterIsCutInTwo) {
  for (size_t shift = 0; shift < 6; ++shift) {
    std::string text(shift, '.');
    for (int i = 0; i < 1000; ++i) text += "好";
    const std::string lines = SampleLines(Answer(text), "");
    EXPECT_THAT(lines, Not(HasSubstr("\\x"))) << shift;
  }
}

}  // namespace
}  // namespace keel::trainer::rl
