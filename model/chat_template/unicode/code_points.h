// Strings as Python sees them, as sequences of characters, over UTF-8. Every text here is UTF-8
// that has been checked; ASCII is the fast way.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace keel::model::jinja {

bool IsAscii(std::string_view text);
int64_t CountCharacters(std::string_view text);

// The character at text[*at], and `*at` behind it.
char32_t NextCharacter(std::string_view text, size_t* at);
void AppendCharacter(char32_t character, std::string* text);
std::u32string ToCharacters(std::string_view text);
std::string FromCharacters(std::u32string_view characters);

// str.isprintable of one character.
bool IsPrintable(char32_t character);

// str.strip: without the characters of `chars` at the ends, or without white space where it is
// null.
enum class StripSide { kBoth, kLeft, kRight };
std::string_view StripText(std::string_view text, StripSide side,
                           const std::string_view* chars = nullptr);

std::string LowerText(std::string_view text);
// str.isupper or str.islower: it has letters of this case and of no other.
bool IsOfCase(std::string_view text, bool upper);
std::string UpperText(std::string_view text);
// str.capitalize: the first character in title case, the rest in lower case.
std::string CapitalizeText(std::string_view text);

}  // namespace keel::model::jinja
