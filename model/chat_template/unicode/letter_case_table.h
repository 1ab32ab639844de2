// Which characters have a case, as sorted tables. See code_points.h.
#pragma once

#include <span>

namespace keel::model::jinja {

// Every `step`th character from `first` to `last`.
struct SteppedRange {
  char32_t first;
  char32_t last;
  char32_t step;
};

std::span<const SteppedRange> LowerRanges();
std::span<const SteppedRange> UpperRanges();
std::span<const SteppedRange> TitleRanges();
// Of no account where a word's end is looked for: apostrophes, marks.
std::span<const SteppedRange> IgnorableRanges();

}  // namespace keel::model::jinja
