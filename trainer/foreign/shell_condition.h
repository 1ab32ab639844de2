// What the tests of a script say ([ ... ], [[ ... ]], test ..., the patterns of case), as far as it
// follows from known words.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "trainer/foreign/shell_script.h"

namespace keel::trainer::foreign {

// What a test of these words says, its brackets among them; nothing, where a word is not known or
// only the machine it runs on could say (-f FILE). In [[ ... ]] also && and || are words.
std::optional<bool> ShellTest(std::span<const ShellWord> words);

// Whether a word is matched by a pattern of `case` or of [[ == ]].
std::optional<bool> ShellMatch(const ShellWord& word, const ShellWord& pattern);

}  // namespace keel::trainer::foreign
