// What methods and filters do with strings alike.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/byte_range.h"
#include "common/text_pattern.h"

namespace keel::model::jinja {

// str.splitlines; the lines have their ends where `keep_ends`.
std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends = false);
// str.split() at white space; at most `most` cuts where that is not negative.
std::vector<std::string_view> SplitAtSpace(std::string_view text, int64_t most);
// The same for str.rsplit().
std::vector<std::string_view> SplitAtSpaceFromRight(std::string_view text, int64_t most);
// str.split(separator), str.rsplit(separator); the separator is not "".
std::vector<std::string_view> SplitAt(std::string_view text, std::string_view separator,
                                      int64_t most, bool from_right);
// str.replace; all of them where `most` is negative.
std::string Replaced(std::string_view text, std::string_view from, std::string_view to,
                     int64_t most);
// The first match from byte `at` on. Fails where that takes too many steps.
std::optional<ByteRange> Found(const TextPattern& pattern, std::string_view text, size_t at = 0);

}  // namespace keel::model::jinja
