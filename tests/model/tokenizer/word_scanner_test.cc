#include "model/tokenizer/word_scanner.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "model/tokenizer/pattern.h"

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

// An expression in brackets is the same one, but none that the scanner knows. Nightly, of a
// character more.
TEST(WordScanner, AllShortTextsAreSplitAsOnigurumaSplitsThem) {
  const std::vector<std::string> characters = {"a", "S", " ",      "\n", "\t",     "1",  ",",
                                               "'", "é", "\u00a0", "١",  "\u0301", "中", "\x01"};
  PatternScratch scratch;
  for (const std::string& expression : kExpressions) {
    const Pattern quick = ValueOrThrow(Pattern::Regex(expression, "test"));
    const Pattern plain = ValueOrThrow(Pattern::Regex("(?:" + expression + ")", "test"));
    std::vector<Span> found;
    std::vector<Span> expected;
    size_t quickly = 0;
    size_t combinations = 1;
    const int length = std::getenv("KEEL_NIGHTLY") != nullptr ? 5 : 4;
    for (int i = 0; i < length; ++i) combinations *= characters.size();
    for (size_t n = 0; n < combinations; ++n) {
      std::string text;
      size_t digits = n;
      for (int i = 0; i < length; ++i, digits /= characters.size()) {
        text += characters[digits % characters.size()];
      }
      found.clear();
      expected.clear();
      quick.FindAll(text, &scratch, &found);
      plain.FindAll(text, &scratch, &expected);
      ASSERT_EQ(found, expected) << expression << "\n\"" << text << "\"";
      const WordScanner scanner = WordScanner::For(expression);
      if (scanner.MatchEnd(text, 0) > 0 || scanner.MayBegin(text, 0) > 0) ++quickly;
    }
    EXPECT_GT(quickly, combinations / 20) << expression;
    EXPECT_EQ(WordScanner::For("(?:" + expression + ")").MatchEnd("a ", 0), 0u);
  }
}

}  // namespace
}  // namespace keel::model
