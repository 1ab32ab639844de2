#include "model/tokenizer/pipeline/word_scanner.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "model/tokenizer/pipeline/pattern.h"
#include "tests/support/nightly.h"

namespace keel::model {
namespace {

const std::vector<std::string> kExpressions = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    // DeepSeek's three; the last with the newlines that its file spells as such.
    R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|)"
    "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
    "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"};

// One or more of each class of characters that the expressions know.
const std::vector<std::string> kCharacters = {
    "a",      "S",      " ",  "\n",   "\t", "1", ",", "'",  "é", "\u00a0",
    "١",      "\u0301", "中", "\x01", "ǅ",  "ʰ", "½", "。", "€", "\u2028",
    "\u0378", "ア",     "É",  "𝟙",    "\r", "l", "L", "e",  "ſ"};

// An expression in brackets is the same one, but none that the scanner knows.
class Split {
 public:
  explicit Split(const std::string& expression)
      : scanner_(WordScanner::For(expression)),
        quick_(ValueOrThrow(Pattern::Regex(expression, "test"))),
        plain_(ValueOrThrow(Pattern::Regex("(?:" + expression + ")", "test"))) {}
  bool IsAsExpected(const std::string& text) {
    found_.clear();
    expected_.clear();
    quick_.FindAll(text, &scratch_, &found_);
    plain_.FindAll(text, &scratch_, &expected_);
    ++texts_;
    if (scanner_.MatchEnd(text, 0) > 0 || scanner_.MayBegin(text, 0) > 0) ++quickly_;
    return found_ == expected_;
  }
  // Of the texts, those whose first match needed no expression.
  double quickly() const { return static_cast<double>(quickly_) / static_cast<double>(texts_); }

 private:
  WordScanner scanner_;
  Pattern quick_, plain_;
  PatternScratch scratch_;
  std::vector<Span> found_, expected_;
  int texts_ = 0, quickly_ = 0;
};

TEST(WordScanner, AllShortTextsAreSplitAsOnigurumaSplitsThem) {
  const int length = testing::Nightly() ? 4 : 3;
  size_t combinations = 1;
  for (int i = 0; i < length; ++i) combinations *= kCharacters.size();
  for (const std::string& expression : kExpressions) {
    Split split(expression);
    for (size_t n = 0; n < combinations; ++n) {
      std::string text;
      size_t digits = n;
      for (int i = 0; i < length; ++i, digits /= kCharacters.size()) {
        text += kCharacters[digits % kCharacters.size()];
      }
      ASSERT_TRUE(split.IsAsExpected(text)) << expression << "\n\"" << text << "\"";
    }
    EXPECT_GT(split.quickly(), 0.1) << expression;
    EXPECT_EQ(WordScanner::For("(?:" + expression + ")").MatchEnd("a ", 0), 0u);
  }
}

// What a contraction is the scanner says itself, but for letters that are not ASCII.
TEST(WordScanner, ContractionsAreThoseOfOniguruma) {
  const std::vector<std::string> letters = {"s",      "t", "m", "d", "l", "r", "v", "e", "S",
                                            "T",      "M", "D", "L", "R", "V", "E", "x", "ſ",
                                            "\u212a", "é", "ß", "ﬅ", "'", " ", "1", ""};
  for (const std::string& expression : kExpressions) {
    Split split(expression);
    for (const char* before : {"", "a", "A ", "é", "1", "\n"}) {
      for (const std::string& one : letters) {
        for (const std::string& two : letters) {
          for (const std::string& three : letters) {
            const std::string text = before + ("'" + one + two + three);
            ASSERT_TRUE(split.IsAsExpected(text)) << expression << "\n\"" << text << "\"";
          }
        }
      }
    }
  }
  for (const std::string& expression : {kExpressions[0], kExpressions[1]}) {
    const WordScanner scanner = WordScanner::For(expression);
    EXPECT_EQ(scanner.MatchEnd("'sx", 0), 2u) << expression;
    EXPECT_EQ(scanner.MatchEnd("'rex", 0), 3u) << expression;
  }
  EXPECT_EQ(WordScanner::For(kExpressions[1]).MatchEnd("'\u017f", 0), 0u);
}

TEST(WordScanner, LongerTextsAreSplitAsOnigurumaSplitsThem) {
  std::mt19937 random(7);  // NOLINT: the same texts every time
  const int texts = testing::Nightly() ? 1'000'000 : 20'000;
  for (const std::string& expression : kExpressions) {
    Split split(expression);
    for (int n = 0; n < texts; ++n) {
      std::string text;
      const size_t length = 4 + random() % 12;
      for (size_t i = 0; i < length; ++i) text += kCharacters[random() % kCharacters.size()];
      ASSERT_TRUE(split.IsAsExpected(text)) << expression << "\n\"" << text << "\"";
    }
  }
}

}  // namespace
}  // namespace keel::model
