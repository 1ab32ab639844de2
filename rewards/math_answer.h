// Finds and compares the answers of mathematical problems as people and models write them: LaTeX or
// plain, fractions, decimals, percent, units, thousands separators. Torch-free; every function
// takes time linear in its input, within fixed limits, whatever the input is.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace keel::rewards {

constexpr size_t kMaxMathAnswer = 2048;

// What stands in the last \boxed{...} or \fbox{...}, braces balanced, or after "\boxed ". Nothing
// when there is none, or when the last one does not close.
std::optional<std::string> LastBoxed(std::string_view text);

// The last number of a text: "-1,234.5", without separators. Nothing when there is none.
std::optional<std::string> LastNumber(std::string_view text);

// Whether two answers are the same: by value where both have one (1/2, 0.5, \frac12; 50% is 50 or
// 0.5 where the other side has no percent sign), else by their text without spacing and dressing.
// Units must agree where both sides give one; tuples, intervals and sets agree by their members.
// Answers of more than kMaxMathAnswer bytes equal nothing.
bool SameAnswer(std::string_view a, std::string_view b);

// One text for answers of the same value ("1/2" for 0.5 and \\frac12); for those without a value,
// their own without spacing and dressing. Empty when there is none, or it is too long.
std::string AnswerForm(std::string_view answer);

}  // namespace keel::rewards
