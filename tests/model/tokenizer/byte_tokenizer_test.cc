#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer_kind.h"

namespace keel::model {
namespace {

TEST(ByteTokenizer, EveryStringOfBytesComesBackAsItWas) {
  const auto tokenizer = MakeTokenizer(TokenizerKind::kBytes);
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
  const auto tokenizer = MakeTokenizer(TokenizerKind::kBytes);
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
  EXPECT_EQ(ParseName<TokenizerKind>("bytes"), TokenizerKind::kBytes);
  EXPECT_EQ(ParseName<TokenizerKind>("ids"), TokenizerKind::kIds);
  EXPECT_EQ(ParseName<TokenizerKind>("bpe"), std::nullopt);
  EXPECT_EQ(MakeTokenizer(TokenizerKind::kIds), nullptr);
}

}  // namespace
}  // namespace keel::model
