#include "model/tokenizer/stream_decoder.h"

#include <gtest/gtest.h>

#include "model/tokenizer/byte_tokenizer.h"
#include "model/tokenizer/text/utf8.h"

namespace keel::model {
namespace {

TEST(StreamDecoder, BytesBecomeTextACharacterAtATime) {
  const auto tokenizer = MakeByteTokenizer();
  StreamDecoder decoder(*tokenizer);
  EXPECT_EQ(decoder.Push('a'), "a");
  EXPECT_EQ(decoder.Push(0xE2), "");
  EXPECT_EQ(decoder.Push(0x82), "");
  EXPECT_EQ(decoder.Push(256), "");
  EXPECT_EQ(decoder.Push(0xAC), "€");
  EXPECT_EQ(decoder.Push(0xF0), "");
  EXPECT_EQ(decoder.Push('b'),
            "\xF0"
            "b");
  EXPECT_EQ(decoder.Push(0xC3), "");
  EXPECT_EQ(decoder.Finish(), "\xC3");
  EXPECT_EQ(decoder.Push('c'), "c");
}

TEST(Utf8, PartsOfCharactersBecomeOneReplacementEach) {
  const auto lossy = [](std::string_view bytes) {
    std::string text;
    AppendLossy(bytes, &text);
    return text;
  };
  EXPECT_EQ(lossy("Grüße"), "Grüße");
  EXPECT_EQ(lossy("a\xF0\x9F\x98z"), "a\uFFFDz");
  EXPECT_EQ(lossy("\xE0\x80\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(lossy("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(lossy("\xC0\xFF\xF5"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(lossy("\xE2\x82"), "\uFFFD");
}

TEST(Utf8, CodePointsComeBackAsTheyWere) {
  for (const uint32_t value : {0u, 0x7Fu, 0x80u, 0x7FFu, 0x800u, 0xFFFFu, 0x10000u, 0x10FFFFu}) {
    std::string text;
    AppendUtf8(value, &text);
    EXPECT_EQ(CodePointAt(text, 0).value, value);
    EXPECT_EQ(CodePointAt(text, 0).length, text.size());
    EXPECT_EQ(Utf8Length(text[0]), text.size());
  }
}

}  // namespace
}  // namespace keel::model
