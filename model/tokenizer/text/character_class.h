// What the expressions of tokenizers tell characters apart by, in one table, as Oniguruma has it.
#pragma once

#include <cstdint>

namespace keel::model {

// Sets of general categories; no character is in two of them, some are in none.
enum CharacterClass : uint8_t {
  kCapitals = 1,   // \p{Lu}, \p{Lt}
  kSmalls = 2,     // \p{Ll}
  kCaseless = 4,   // \p{Lm}, \p{Lo}
  kMarks = 8,      // \p{M}
  kNumbers = 16,   // \p{N}
  kNewlines = 32,  // \r and \n
  kBlanks = 64,    // all else of \s
  kSigns = 128,    // \p{P}, \p{S}
};
constexpr uint8_t kLetters = kCapitals | kSmalls | kCaseless;  // \p{L}
constexpr uint8_t kSpaces = kNewlines | kBlanks;               // \s

// The class of each code point up to U+10FFFF, 0 for those that have none. Made at the first call,
// from the library's own tables: what they say and what its expressions match is the same.
const uint8_t* CharacterClasses();

}  // namespace keel::model
