// What of an answer is shown while it grows.

#include "tools/inference/answer_stream.h"

#include <gtest/gtest.h>

namespace keel::tools {
namespace {

TEST(AnswerStreamTest, ShowsEachPartOnce) {
  AnswerStream stream({});
  EXPECT_EQ(stream.Grow("ab"), "ab");
  EXPECT_EQ(stream.Grow("ab"), "");
  EXPECT_EQ(stream.Grow("abc d"), "c d");
  EXPECT_EQ(stream.End("abc de"), "e");
}

TEST(AnswerStreamTest, HoldsBackHalfACharacter) {
  AnswerStream bytes({});
  EXPECT_EQ(bytes.Grow("a\xe2"), "a");
  EXPECT_EQ(bytes.Grow("a\xe2\x82"), "");
  EXPECT_EQ(bytes.Grow("a\xe2\x82\xac"), "\xe2\x82\xac");
  EXPECT_EQ(bytes.End("a\xe2\x82\xac\xc3"), "\xc3");  // it ended like this
  AnswerStream replaced({});
  EXPECT_EQ(replaced.Grow("a\xef\xbf\xbd"), "a");
  EXPECT_EQ(replaced.Grow("a\xc3\xa9"), "\xc3\xa9");
}

TEST(AnswerStreamTest, HoldsBackWhatMayBecomeAStopString) {
  AnswerStream stream({"###", "END"});
  EXPECT_EQ(stream.Grow("a#"), "a");
  EXPECT_EQ(stream.Grow("a##"), "");
  EXPECT_EQ(stream.Grow("a##b EN"), "##b ");
  EXPECT_EQ(stream.End("a##b "), "");  // the engine ends before the stop string
}

}  // namespace
}  // namespace keel::tools
