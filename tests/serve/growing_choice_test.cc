// Where tokens begin in a choice's text; what a choice becomes, e2e/serve_tools_test.py says.
#include "serve/growing_choice.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace keel::serve {
namespace {

std::vector<size_t> Offsets(const std::vector<std::string>& tokens) {
  CharacterCount count;
  std::vector<size_t> offsets;
  for (const std::string& token : tokens) {
    offsets.push_back(count.CountOf(token));
    count.Add(token);
  }
  return offsets;
}

TEST(CharacterCountTest, PartsOfACharacterStandWhereItStands) {
  EXPECT_EQ(Offsets({"w", "\xC3", "\xB6", "r", "ld", "!"}),
            (std::vector<size_t>{0, 1, 1, 2, 3, 5}));
  EXPECT_EQ(Offsets({"\xE6\x97", "\xA5x", "y"}), (std::vector<size_t>{0, 0, 2}));
  EXPECT_EQ(Offsets({"\xF0", "\x9F", "\x98", "\x80", "a"}), (std::vector<size_t>{0, 0, 0, 0, 1}));
}

// They are shown as U+FFFD each.
TEST(CharacterCountTest, BytesOfNoCharacterAreOneEach) {
  EXPECT_EQ(Offsets({"\x99", "\x99", "a"}), (std::vector<size_t>{0, 1, 2}));
  EXPECT_EQ(Offsets({"\xFA", "\x80", "a"}), (std::vector<size_t>{0, 1, 2}));
  EXPECT_EQ(Offsets({"\xE2", "a", "\x80", "b"}), (std::vector<size_t>{0, 1, 2, 3}));
}

}  // namespace
}  // namespace keel::serve
