#include "common/text_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace keel {
namespace {

using ::testing::HasSubstr;

std::optional<std::pair<int64_t, int64_t>> Place(const TextPattern& pattern, std::string_view text,
                                                 size_t at = 0) {
  const auto found = ValueOrThrow(pattern.Find(text, at));
  if (!found) return std::nullopt;
  return std::pair(found->begin, found->end);
}

TEST(TextPatternTest, FindsCharactersAndNotBytes) {
  const TextPattern two = TextPattern::Fixed("^.{2}$");
  EXPECT_EQ(Place(two, "äö"), std::pair(int64_t{0}, int64_t{4}));
  EXPECT_EQ(Place(two, "ä"), std::nullopt);
  EXPECT_EQ(Place(TextPattern::Fixed(R"(\w+)"), "«Ünï» 1", 2), std::pair(int64_t{2}, int64_t{7}));
  // Of Python's re, and of PCRE2 before 10.43: a mark is no part of a word.
  EXPECT_EQ(Place(TextPattern::Fixed(R"([\p{L}\p{N}_]+)"), "e\u0301"),
            std::pair(int64_t{0}, int64_t{1}));
  EXPECT_EQ(Place(TextPattern::Fixed("ß", true), "ẞ"), std::pair(int64_t{0}, int64_t{3}));
}

TEST(TextPatternTest, WholeMatchesAWholeTextOrNothing) {
  const auto whole = ValueOrThrow(TextPattern::Compile("a|ab", {.whole = true}));
  EXPECT_EQ(Place(whole, "ab"), std::pair(int64_t{0}, int64_t{2}));
  EXPECT_EQ(Place(whole, "ab\n"), std::nullopt);
  EXPECT_EQ(Place(whole, "xab"), std::nullopt);
}

TEST(TextPatternTest, BytesAreCharactersWhereThatIsAskedFor) {
  const auto bytes = ValueOrThrow(TextPattern::Compile("^.{2}$", {.bytes = true}));
  EXPECT_EQ(Place(bytes, "ä"), std::pair(int64_t{0}, int64_t{2}));
  EXPECT_EQ(Place(bytes, "\xff\xfe"), std::pair(int64_t{0}, int64_t{2}));
}

TEST(TextPatternTest, WhatIsNoExpressionIsSaidWithItsPlace) {
  EXPECT_THAT(TextPattern::Compile("ab(", {}).status().message(), HasSubstr("byte 3 of 'ab('"));
  EXPECT_THROW(TextPattern::Fixed("["), Error);
}

TEST(TextPatternTest, ASearchWithoutAnEndInSightEnds) {
  const TextPattern slow = TextPattern::Fixed("(a+)+[bc]");
  const auto found = slow.Find(std::string(40, 'a'));
  EXPECT_EQ(found.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(found.status().message(), HasSubstr("a pattern on 40 bytes"));
}

}  // namespace
}  // namespace keel
