// ConsoleLine: a step's line on the console as fields, of which a narrow terminal gets the most
// important ones. Pure, torch-free.
#pragma once

#include <string>
#include <vector>

namespace keel::trainer {

// The lower, the longer a field stays. What is kKept stays always: where the run is, what it is
// judged by, rate, tokens and time of a step, and what went wrong.
inline constexpr int kKept = 0;

struct ConsoleField {
  std::string text;  // empty: nothing to say in this step
  int order = kKept;
};

using ConsoleLine = std::vector<ConsoleField>;

// All fields, two spaces apart.
std::string WholeText(const ConsoleLine& line);

// What of it fits into `columns`. The field of the highest order goes first, of equal ones the one
// further right. If what is kept is still too wide, its padding goes, and then its end.
std::string FittedText(const ConsoleLine& line, int columns);

}  // namespace keel::trainer
