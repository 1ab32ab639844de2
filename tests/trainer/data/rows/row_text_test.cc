// What a tokenizer puts around texts, of whole ones and of prompts.

#include "trainer/data/rows/row_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trainer/data/rows/row_notes.h"

namespace keel::trainer {
namespace {

using ::testing::ElementsAre;

constexpr int32_t kBegin = 1, kEnd = 2;

// A text's bytes; "." is the end's token. Texts begin with kBegin and end with kEnd, as
// `add_eos_token: true` has it.
class EndingTokenizer final : public model::Tokenizer {
 public:
  EndingTokenizer() : Tokenizer(Facts()) {}
  std::optional<int32_t> IdOf(std::string_view) const override { return std::nullopt; }
  std::string_view TokenOf(int32_t) const override { return {}; }
  bool IsSpecial(int32_t id) const override { return id <= kEnd; }
  std::unique_ptr<DecodeState> StartDecoding(const model::DecodeOptions&) const override {
    return nullptr;
  }

 private:
  static model::TokenizerFacts Facts() {
    model::TokenizerFacts facts;
    facts.vocab_size = 256;
    facts.bos = kBegin;
    facts.eos = kEnd;
    return facts;
  }
  std::vector<int32_t> DoEncode(std::string_view text, const model::EncodeOptions& options,
                                std::vector<ByteRange>*) const override {
    std::vector<int32_t> ids;
    if (options.add_special_tokens) ids.push_back(kBegin);
    for (const char c : text) ids.push_back(c == '.' ? kEnd : c);
    if (options.add_special_tokens) ids.push_back(kEnd);
    return ids;
  }
};

TEST(RowTextTest, APromptHasNoEndBehindIt) {
  const EndingTokenizer tokenizer;
  TextRules rules(tokenizer);
  rules.frames_text = true;
  const std::string where = "rows.jsonl:1";
  RowNotes notes;
  const RowContext context{rules, where, notes};
  const auto prompt = [&](const char* text) { return ValueOrThrow(EncodePrompt(text, context)); };
  EXPECT_THAT(ValueOrThrow(EncodeText("ab", context)), ElementsAre(kBegin, 'a', 'b', kEnd));
  EXPECT_THAT(prompt("ab"), ElementsAre(kBegin, 'a', 'b'));
  EXPECT_THAT(prompt(""), ElementsAre(kBegin));
  // The text's own stays.
  EXPECT_THAT(prompt("a."), ElementsAre(kBegin, 'a', kEnd));
  EXPECT_THAT(prompt("."), ElementsAre(kBegin, kEnd));
  EXPECT_THAT(prompt(".."), ElementsAre(kBegin, kEnd, kEnd));
  rules.frames_text = false;
  EXPECT_THAT(prompt("a."), ElementsAre('a', kEnd));
}

}  // namespace
}  // namespace keel::trainer
