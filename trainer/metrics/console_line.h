// A ConsoleLine as text: of its fields a narrow terminal gets the most important ones. Pure,
// torch-free.
#pragma once

#include <string>

#include "trainer/metrics/metrics_sink.h"

namespace keel::trainer {

// All fields, two spaces apart.
std::string WholeText(const ConsoleLine& line);

// What of it fits into `columns`. The field of the highest order goes first, of equal ones the one
// further right. If what is kept is still too wide, its padding goes, and then its end.
std::string FittedText(const ConsoleLine& line, int columns);

}  // namespace keel::trainer
