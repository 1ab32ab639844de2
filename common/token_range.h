// TokenRange: tokens [begin, end) of a sequence, and lists of such ranges.
#pragma once

#include <cstdint>
#include <vector>

namespace keel {

struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

// What is wrong with ranges of `tokens` tokens that ascend, hold a token each and lie apart; null:
// nothing.
const char* ProblemOf(const std::vector<TokenRange>& ranges, int64_t tokens);

}  // namespace keel
