#include "model/tokenizer/files/tokenizer_json.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "common/text.h"
#include "model/tokenizer/stream_decoder.h"
#include "model/tokenizer/text/utf8.h"

namespace keel::model {
namespace {

// Tokens a, b, ab, space, <mark>; the parts can be replaced.
std::string File(const std::string& rest = "", const std::string& merges = R"(["a b"])",
                 const std::string& vocab = R"({"a":0,"b":1,"ab":2," ":3})") {
  return R"({"version":"1.0","added_tokens":[{"id":4,"content":"<mark>","special":true}],)" +
         (rest.empty() ? "" : rest + ",") + R"("model":{"type":"BPE","vocab":)" + vocab +
         R"(,"merges":)" + merges + "}}";
}

std::string Refusal(const std::string& file, const SpecialNames& names = {}) {
  const auto tokenizer = ParseTokenizerJson(file, "t.json", names);
  EXPECT_FALSE(tokenizer.ok()) << file;
  if (tokenizer.ok()) return {};
  EXPECT_EQ(tokenizer.status().code(), StatusCode::kInvalidData) << tokenizer.status().ToString();
  EXPECT_TRUE(tokenizer.status().message().starts_with("t.json: ")) << tokenizer.status().message();
  return tokenizer.status().message();
}

TEST(TokenizerJson, TextBecomesIdsOffsetsAndTextAgain) {
  SpecialNames names;
  names.eos = "<mark>";
  const auto tokenizer = ValueOrThrow(ParseTokenizerJson(File(), "t.json", names));
  EXPECT_EQ(tokenizer->vocab_size(), 5);
  EXPECT_EQ(tokenizer->eos(), 4);
  EXPECT_EQ(tokenizer->bos(), std::nullopt);
  EXPECT_EQ(tokenizer->IdOf("<mark>"), 4);
  EXPECT_EQ(tokenizer->TokenOf(2), "ab");
  EXPECT_EQ(tokenizer->TokenOf(-1), "");
  EXPECT_EQ(tokenizer->TokenOf(5), "");
  EXPECT_TRUE(tokenizer->IsSpecial(4));
  const Encoding encoding = tokenizer->EncodeWithOffsets("ab<mark>\xFFxba");
  EXPECT_EQ(encoding.ids, (std::vector<int32_t>{2, 4, 1, 0}));
  EXPECT_EQ(encoding.offsets[1], (ByteRange{2, 8}));
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{2, 4, 99, -7, 1}), "ab b");
  EXPECT_EQ(tokenizer->Decode(encoding.ids, {.skip_special_tokens = false}), "ab <mark> b a");
}

TEST(TokenizerJson, DigestsTellFilesAndNamesApart) {
  SpecialNames names;
  names.pad = "a";
  const auto one = ValueOrThrow(ParseTokenizerJson(File(), "t.json"));
  EXPECT_EQ(one->digest(), ValueOrThrow(ParseTokenizerJson(File(), "elsewhere"))->digest());
  EXPECT_NE(one->digest(), ValueOrThrow(ParseTokenizerJson(File() + " ", "t.json"))->digest());
  EXPECT_NE(one->digest(), ValueOrThrow(ParseTokenizerJson(File(), "t.json", names))->digest());
}

TEST(TokenizerJson, WhatIsNotUnderstoodIsRefusedByName) {
  const auto refuses = [](const std::string& file, std::string_view name) {
    const std::string message = Refusal(file);
    EXPECT_NE(message.find(name), std::string::npos) << message;
  };
  refuses(File(R"("normalizer":{"type":"Precompiled","precompiled_charsmap":""})"), "Precompiled");
  refuses(File(R"("normalizer":{"type":"NFC","extra":1})"), "extra");
  refuses(File(R"("normalizer":{"type":"Sequence","normalizers":[{"type":"Nmt"}]})"), "[0]");
  refuses(File(R"("normalizer":[])"), "normalizer");
  refuses(File(R"("normalizer":{"type":"Prepend","prepend":""})"), "prepend is empty");
  refuses(File(R"("pre_tokenizer":{"type":"BertPreTokenizer"})"), "BertPreTokenizer");
  refuses(File(R"("pre_tokenizer":{"type":"Split","behavior":"Isolated","invert":false,)"
               R"("pattern":{"Regex":"(a"}})"),
          "(a");
  refuses(File(R"("post_processor":{"type":"BertProcessing"})"), "BertProcessing");
  refuses(File(R"("post_processor":{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A"}},)"
               R"({"SpecialToken":{"id":"x"}}],"special_tokens":{"x":{"id":"x","ids":[77]}}})"),
          "77");
  refuses(File(R"("decoder":{"type":"WordPiece"})"), "WordPiece");
  refuses(File(R"("surprise":1)"), "surprise");
  refuses(R"({"model":{"type":"Unigram","vocab":[]}})", "Unigram");
  refuses(R"({"model":{"type":"BPE","vocab":{},"merges":[],"dropout":0.1}})", "dropout");
}

TEST(TokenizerJson, HostileFilesAreRefused) {
  for (const char* file : {"", "null", "[]", "{", "{}", "\xFF", R"({"model":1})"}) Refusal(file);
  const std::string whole = File();
  for (size_t length = 0; length < whole.size(); ++length) Refusal(whole.substr(0, length));
  Refusal(File("", R"(["a c"])"));
  Refusal(File("", R"(["a b c"])"));
  Refusal(File("", R"([["a"]])"));
  Refusal(File("", "[1]"));
  Refusal(File("", "[]", R"({"a":-1})"));
  Refusal(File("", "[]", R"({"a":4000000000})"));
  Refusal(File("", "[]", R"({"a":0,"b":0})"));
  Refusal(File("", "[]", R"({"a":0,"a":1})"));
  Refusal(File("", "[]", R"({"a":4})"));
  Refusal(File("", "[]", R"({"<mark>":3})"));
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "[";
  Refusal(deep);
  SpecialNames names;
  names.bos = "<none>";
  EXPECT_NE(Refusal(File(), names).find("<none>"), std::string::npos);
}

// As `tokenizers` has it: what an empty match puts in has the place of the character before it.
TEST(TokenizerJson, AnEmptyMatchHasThePlaceOfTheCharacterBeforeIt) {
  const auto tokenizer = ValueOrThrow(ParseTokenizerJson(
      R"({"normalizer":{"type":"Replace","pattern":{"Regex":"x*"},"content":"_"},)"
      R"("model":{"type":"BPE","vocab":{"a":0,"b":1,"_":2},"merges":[]}})",
      "t.json"));
  const Encoding encoding = tokenizer->EncodeWithOffsets("ab");
  EXPECT_EQ(encoding.ids, (std::vector<int32_t>{2, 0, 2, 1, 2}));
  EXPECT_EQ(encoding.offsets, (std::vector<ByteRange>{{0, 0}, {0, 1}, {0, 1}, {1, 2}, {1, 2}}));
}

// `tokenizers` counts on from the last token, so that all that follows in the piece is shifted.
TEST(TokenizerJson, BehindACharacterThatIsLeftOutOffsetsAreWhereTheTextIs) {
  const std::string whole =
      R"("pre_tokenizer":{"type":"Split","pattern":{"String":"|"},"behavior":"Removed"})";
  for (const std::string& rest : {std::string(), whole}) {
    const auto tokenizer = ValueOrThrow(ParseTokenizerJson(File(rest), "t.json"));
    const Encoding encoding = tokenizer->EncodeWithOffsets("xa\u00e9b\u4e2db a");
    EXPECT_EQ(encoding.ids, (std::vector<int32_t>{2, 1, 3, 0}));
    EXPECT_EQ(encoding.offsets, (std::vector<ByteRange>{{1, 5}, {8, 9}, {9, 10}, {10, 11}}));
  }
}

TEST(TokenizerJson, OfAnUnknownCharacterNoSpaceIsTrimmed) {
  const auto tokenizer = ValueOrThrow(ParseTokenizerJson(
      R"({"added_tokens":[{"id":1,"content":"<unk>","special":true}],"post_processor":{"type":"ByteLevel"},)"
      R"("model":{"type":"BPE","unk_token":"<unk>","vocab":{"a":0,"<unk>":1},"merges":[]}})",
      "t.json"));
  const Encoding encoding = tokenizer->EncodeWithOffsets("a \n<unk>");
  EXPECT_EQ(encoding.ids, (std::vector<int32_t>{0, 1, 1, 1}));
  EXPECT_EQ(encoding.offsets, (std::vector<ByteRange>{{0, 1}, {1, 2}, {2, 3}, {3, 8}}));
}

TEST(TokenizerJson, ATemplateBehindATemplateIsRefused) {
  const std::string one =
      R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"a","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],)"
      R"("pair":[],"special_tokens":{"a":{"id":"a","ids":[0],"tokens":["a"]}}})";
  const auto sequence = [](const std::string& parts) {
    return File(R"("post_processor":{"type":"Sequence","processors":[)" + parts + "]}");
  };
  EXPECT_TRUE(ParseTokenizerJson(sequence(one + R"(,{"type":"ByteLevel"})"), "t.json").ok());
  EXPECT_NE(Refusal(sequence(one + "," + one)).find("behind another"), std::string::npos);
}

TEST(TokenizerJson, FewTokensMakeNoLargeTable) {
  EXPECT_TRUE(
      ParseTokenizerJson(R"({"model":{"type":"BPE","vocab":{"a":60000},"merges":[]}})", "t.json")
          .ok());
  EXPECT_NE(Refusal(R"({"model":{"type":"BPE","vocab":{"a":16777214},"merges":[]}})")
                .find("so many tokens"),
            std::string::npos);
}

// What is read as U+FFFD, AppendLossy says; random bytes, of which many begin a character.
TEST(TokenizerJson, BytesThatAreNotUtf8AreReadAsReplacements) {
  const auto tokenizer = ValueOrThrow(
      ParseTokenizerJson(File("", "[]", R"({"a":0,"\ufffd":1,"\u00e9":2,"\u4e2d":3})"), "t.json"));
  std::mt19937 random(5);  // NOLINT: the same texts every time
  constexpr std::string_view kBytes =
      "a \x80\xA9\xBF\xC0\xC3\xE0\xE4\xB8\xAD\xED\xA0\xEF\xBD\xF0\x90\xF4\x8F\xF5\xFF";
  int repaired = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text(random() % 100, ' ');
    const bool whole = random() % 4 == 0;
    for (char& byte : text) byte = whole ? 'a' : kBytes[random() % kBytes.size()];
    std::string lossy;
    AppendLossy(text, &lossy);
    if (lossy != text) ++repaired;
    ASSERT_EQ(tokenizer->Encode(text), tokenizer->Encode(lossy)) << Printable(text);
  }
  EXPECT_GT(repaired, 10'000);
}

// Parts of a character, and a space that a text's first token loses.
TEST(TokenizerJson, TheBytesOfATokenAreWhatItAddsToAText) {
  const auto bytes = ValueOrThrow(
      ParseTokenizerJson(File(R"("decoder":{"type":"ByteLevel"})", "[]",
                              R"({"\u00c3":0,"\u00b6":1,"\u0120a":2,"\u00c3\u00b6":3})"),
                         "t.json"));
  const auto spaces = ValueOrThrow(ParseTokenizerJson(
      File(R"("decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":)"
           R"({"String":"\u2581"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},)"
           R"({"type":"Strip","content":" ","start":1,"stop":0}]})",
           "[]", R"({"\u2581a":0,"<0xC3>":1,"b":2,"<0x41>":3})"),
      "t.json"));
  const auto all = [](const Tokenizer& tokenizer) {
    std::vector<std::string> found;
    for (int32_t id = 0; id < 6; ++id) found.push_back(tokenizer.BytesOf(id));
    return found;
  };
  EXPECT_EQ(all(*bytes),
            (std::vector<std::string>{"\xC3", "\xB6", " a", "\xC3\xB6", "<mark>", ""}));
  EXPECT_EQ(all(*spaces), (std::vector<std::string>{" a", "\xC3", "b", "A", "<mark>", ""}));
  EXPECT_EQ(spaces->Decode(std::vector<int32_t>{0}), "a");
}

TEST(TokenizerJson, AnExpressionThatCannotEndIsAnErrorAndNoOtherSplit) {
  const auto tokenizer = ValueOrThrow(ParseTokenizerJson(
      File(R"("pre_tokenizer":{"type":"Split","behavior":"Isolated","invert":false,)"
           R"("pattern":{"Regex":"(?:a|aa|aaa)+c"}})"),
      "t.json"));
  EXPECT_THROW(tokenizer->Encode(std::string(200, 'a') + "bc"), Error);
}

TEST(TokenizerJson, BatchesOnThreadsGiveTheSameIds) {
  const auto tokenizer = ValueOrThrow(ParseTokenizerJson(File(), "t.json"));
  std::vector<std::string> texts;
  for (int i = 0; i < 200; ++i) texts.push_back(std::string(static_cast<size_t>(i), 'a') + "b ab");
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  const auto batch = EncodeBatch(*tokenizer, views, 4);
  ASSERT_EQ(batch.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(batch[i], tokenizer->Encode(texts[i]));
}

TEST(TokenizerJson, ALongPieceIsMergedInTheSameOrderAsAShortOne) {
  const auto tokenizer = ValueOrThrow(ParseTokenizerJson(File(), "t.json"));
  std::string text;
  for (int i = 0; i < 100000; ++i) text += i % 3 == 0 ? "aab" : "ba";
  const std::vector<int32_t> ids = tokenizer->Encode(text);
  std::string spelled;
  for (size_t i = 0; i < ids.size(); ++i) {
    spelled += tokenizer->TokenOf(ids[i]);
    if (i > 0) {
      EXPECT_FALSE(ids[i - 1] == 0 && ids[i] == 1) << "a and b stayed apart";
    }
  }
  EXPECT_EQ(spelled, text);
}

}  // namespace
}  // namespace keel::model
