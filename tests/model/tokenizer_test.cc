#include "model/tokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace keel::model {
namespace {

TEST(ByteTokenizer, EveryStringOfBytesComesBackAsItWas) {
  const auto tokenizer = ValueOrThrow(MakeTokenizer("bytes"));
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  for (const std::string& text :
       {std::string(), std::string("a\0b", 3), std::string("Grüße"), all}) {
    const std::vector<int32_t> tokens = tokenizer->Encode(text);
    ASSERT_EQ(tokens.size(), text.size());
    for (size_t i = 0; i < text.size(); ++i)
      EXPECT_EQ(tokens[i], static_cast<int32_t>(static_cast<unsigned char>(text[i])));
    EXPECT_EQ(tokenizer->Decode(tokens), text);
  }
}

TEST(ByteTokenizer, SpecialTokensAreLeftOutOfText) {
  const auto tokenizer = ValueOrThrow(MakeTokenizer("bytes"));
  ASSERT_TRUE(tokenizer->bos() && tokenizer->eos());
  EXPECT_NE(tokenizer->bos(), tokenizer->eos());
  for (const int32_t special : {*tokenizer->bos(), *tokenizer->eos()}) {
    EXPECT_GE(special, 256);
    EXPECT_LT(special, tokenizer->vocab_size());
  }
  const std::vector<int32_t> tokens = {*tokenizer->bos(), 'h', 258, 'i', *tokenizer->eos(), -1};
  EXPECT_EQ(tokenizer->Decode(tokens), "hi");
}

TEST(Tokenizer, KindsAreReadByTheirNamesAndNoOthers) {
  EXPECT_EQ(TokenizerKindNames(), (std::vector<std::string>{"bytes", "ids"}));
  EXPECT_EQ(ValueOrThrow(ParseTokenizerKind("bytes")), TokenizerKind::kBytes);
  EXPECT_EQ(ValueOrThrow(ParseTokenizerKind("ids")), TokenizerKind::kIds);
  const auto unknown = ParseTokenizerKind("bpe");
  EXPECT_EQ(unknown.status().code(), StatusCode::kConfig);
  EXPECT_NE(unknown.status().message().find("bytes, ids"), std::string::npos);
  EXPECT_EQ(MakeTokenizer("ids").status().code(), StatusCode::kConfig);
}

}  // namespace
}  // namespace keel::model
