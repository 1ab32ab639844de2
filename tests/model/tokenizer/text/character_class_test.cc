#include "model/tokenizer/text/character_class.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/tokenizer/pipeline/pattern.h"
#include "model/tokenizer/text/utf8.h"

namespace keel::model {
namespace {

TEST(CharacterClasses, AreThoseOfTheExpressionsForEachCodePoint) {
  std::string text;
  std::vector<uint32_t> code_points;
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;  // no characters
    AppendUtf8(c, &text);
    code_points.push_back(c);
  }
  const std::vector<std::pair<std::string, int>> expressions = {
      {R"([\p{Lu}\p{Lt}])", kCapitals}, {R"(\p{Ll})", kSmalls}, {R"([\p{Lm}\p{Lo}])", kCaseless},
      {R"(\p{L})", kLetters},           {R"(\p{M})", kMarks},   {R"(\p{N})", kNumbers},
      {R"([\r\n])", kNewlines},         {R"(\s)", kSpaces},     {R"([\p{P}\p{S}])", kSigns}};
  PatternScratch scratch;
  for (const auto& [expression, classes] : expressions) {
    std::vector<Span> found;
    ValueOrThrow(Pattern::Regex(expression, "test")).FindAll(text, &scratch, &found);
    size_t next = 0, at = 0;
    for (const uint32_t c : code_points) {
      const bool matches = next < found.size() && found[next].begin == at;
      if (matches) ++next;
      ASSERT_EQ((CharacterClasses()[c] & classes) != 0, matches) << expression << " U+" << c;
      at += Utf8Length(text[at]);
    }
    EXPECT_EQ(next, found.size());
  }
}

}  // namespace
}  // namespace keel::model
