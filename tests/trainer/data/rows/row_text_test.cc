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

// A text's bytes behind "_", which begins texts, with "xy" as one token.
class BeginningTokenizer final : public model::Tokenizer {
 public:
  BeginningTokenizer() : Tokenizer(Facts()) {}
  std::optional<int32_t> IdOf(std::string_view) const override { return std::nullopt; }
  std::string_view TokenOf(int32_t) const override { return {}; }
  bool IsSpecial(int32_t) const override { return false; }
  std::unique_ptr<DecodeState> StartDecoding(const model::DecodeOptions&) const override {
    return nullptr;
  }

 private:
  static model::TokenizerFacts Facts() {
    model::TokenizerFacts facts;
    facts.vocab_size = 300;
    return facts;
  }
  std::vector<int32_t> DoEncode(std::string_view text, const model::EncodeOptions&,
                                std::vector<ByteRange>*) const override {
    std::vector<int32_t> ids = {'_'};
    for (size_t i = 0; i < text.size(); ++i) {
      const bool both = text.substr(i, 2) == "xy";
      ids.push_back(both ? 256 : text[i]);
      i += both ? 1 : 0;
    }
    return ids;
  }
};

TEST(RowTextTest, AnAnswerHasNoBeginningOfATextUnlessATokenIsOfBoth) {
  const BeginningTokenizer tokenizer;
  const TextRules rules(tokenizer);
  const std::string where = "rows.jsonl:1";
  RowNotes notes;
  const RowContext context{rules, where, notes};
  const auto answer = [&](const char* prompt, const char* text) {
    return ValueOrThrow(
        EncodeAnswer(prompt, ValueOrThrow(EncodePrompt(prompt, context)), text, context));
  };
  EXPECT_THAT(ValueOrThrow(EncodeMore("c", context)), ElementsAre('_', 'c'));
  EXPECT_THAT(answer("ab", "c"), ElementsAre('c'));
  EXPECT_THAT(answer("ab", "xy"), ElementsAre(256));
  EXPECT_THAT(answer("ax", "y"), ElementsAre('_', 'y'));
  EXPECT_THAT(answer("ab", ""), ElementsAre('_'));
}

}  // namespace
}  // namespace keel::trainer
