#include "common/token_range.h"

namespace keel {

const char* ProblemOf(const std::vector<TokenRange>& ranges, int64_t tokens) {
  int64_t behind = -1;
  for (const TokenRange& range : ranges) {
    if (range.begin < 0 || range.end <= range.begin) return "a range of no tokens";
    if (range.begin <= behind) return "its ranges do not ascend, each apart from the one before";
    if (range.end > tokens) return "a range ends behind the last token";
    behind = range.end;
  }
  return nullptr;
}

}  // namespace keel
