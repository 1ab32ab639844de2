// LaTeX of an answer as plain text: "\dfrac{1}{2}" becomes "((1)/(2))". Torch-free.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace keel::rewards {

// Spacing and size commands vanish, \frac and mixed numbers become quotients, powers and roots keep
// their argument in parentheses, \text becomes words. Nothing when braces do not match, an argument
// is missing, or nesting is deeper than 32.
std::optional<std::string> PlainFromLatex(std::string_view latex);

// The end of the group that begins with the brace at `open`, one past its closing brace.
std::optional<size_t> GroupEnd(std::string_view text, size_t open);

}  // namespace keel::rewards
