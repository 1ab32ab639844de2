// The answer of a response as verl's rule `math_dapo` takes it
// (verl 0.9.1, verl/utils/reward_score/math_dapo.py): text that is compared as text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace keel::rewards {

// verl's word for none.
inline constexpr std::string_view kNoDapoAnswer = "[INVALID]";

// What stands behind the last `Answer:`, in whatever case, up to the end of its line;
// kNoDapoAnswer where there is none. Of a whole response: verl gives the last 300 characters.
std::string_view DapoAnswer(std::string_view response);

// What stands in the last `\boxed{`, up to the brace that closes it, where one does. Linear.
std::optional<std::string_view> DapoBoxed(std::string_view response);

// An answer, or a ground truth, without its dressing: what stands behind the last `=`, between the
// first two `$` of each line, without units, articles and spaces; `\frac12` as `\frac{1}{2}`.
// Linear in the text.
std::string NormalizeDapoAnswer(std::string_view answer);

}  // namespace keel::rewards
