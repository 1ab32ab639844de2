// What a terminal shows: its width, and lines cut to it. Torch-free.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace keel {

// Columns of the terminal that `fd` is; 0: it is none, or does not say. Asked anew at each call.
int TerminalColumns(int fd);
// The same of lines; 0 as above.
int TerminalRows(int fd);

// Columns that UTF-8 text takes: two of an East Asian wide character, none of one that combines
// with the one before. Control characters are not expected.
int DisplayWidth(std::string_view text);
// As much of the text as fits; where something is cut off, "…" is the last of it.
std::string FitColumns(std::string_view text, int columns);

// The first of `fields` that fit beside each other, two spaces apart, and at least the first one,
// cut; all where `columns` is 0.
std::string FitFields(std::span<const std::string> fields, int columns);

// Whole lines for whoever reads standard error. Where that cannot be written (it is closed, or a
// file on a full disk) they are lost, and nothing ends for it.
void WriteStderr(std::string_view text);

}  // namespace keel
