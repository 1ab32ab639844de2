// The answer of a response as verl's rule `math_dapo` takes it
// (verl/utils/reward_score/math_dapo.py, its Minerva criteria): text that is compared as text, once
// both sides are normalised.
#pragma once

#include <string>
#include <string_view>

namespace keel::rewards {

// What stands behind the last `Answer:`, in whatever case, up to the end of its line; "[INVALID]"
// where there is none. Of a whole response: verl gives the last 300 characters.
std::string_view DapoAnswer(std::string_view response);

// An answer, or a ground truth, without its dressing: what stands behind the last `=`, between the
// first two `$` of each line, without units, articles and spaces; `\frac12` as `\frac{1}{2}`.
// Linear in the text.
std::string NormalizeDapoAnswer(std::string_view answer);

}  // namespace keel::rewards
