// Small helpers for messages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace keel {

// Insertions, deletions, substitutions and swaps of neighbours from a to b.
int EditDistance(std::string_view a, std::string_view b);

// The candidate within an edit distance of 2 (1 for words of up to four letters) that is nearest,
// or "".
std::string Closest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace keel
