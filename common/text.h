// Small helpers for text: of messages, pages and templates.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace keel {

// ASCII, whatever the locale.
inline bool IsDigit(char c) { return c >= '0' && c <= '9'; }
inline bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
inline bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Without the white space around it.
std::string_view Trim(std::string_view text);

// Insertions, deletions, substitutions and swaps of neighbours from a to b.
int EditDistance(std::string_view a, std::string_view b);

// The candidate within an edit distance of 2 (1 for words of up to four letters) that is nearest,
// or "".
std::string Closest(std::string_view word, const std::vector<std::string>& candidates);

// Text of unknown origin, fit for one line of a message: control characters, line separators,
// changes of direction and bytes that are not UTF-8 become \xNN each; "..." stands for what comes
// after `max_bytes` bytes, or after the last whole character of these.
std::string Printable(std::string_view text, size_t max_bytes = 200);

// A message of several lines that may have such text in it: each line Printable as a whole, and all
// but the first indented, so that no part of it can pass for a line by itself, such as a log's.
std::string PrintableLines(std::string_view message);

// & < > " and ' as entities, in the spelling of Python's markupsafe.
std::string EscapedHtml(std::string_view text);

// Returns where the first byte stands that belongs to no well-formed UTF-8 character; npos when
// none does.
size_t FindNotUtf8(std::string_view text);

}  // namespace keel
