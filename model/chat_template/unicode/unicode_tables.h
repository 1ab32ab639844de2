// What Python's str knows of characters beyond ASCII, as sorted tables. See code_points.h.
#pragma once

#include <cstdint>
#include <span>

namespace keel::model::jinja {

struct CodePointRange {
  char32_t first;
  char32_t last;
};

// Every `stride`th character from `first` to `last` goes to itself plus `delta`.
struct CaseRun {
  char32_t first;
  char32_t last;
  int32_t stride;
  int32_t delta;
};

struct WholeCase {
  char32_t from;
  const char* to;  // UTF-8
};

std::span<const CodePointRange> NotPrintableRanges();
std::span<const CaseRun> LowerRuns();
std::span<const CaseRun> UpperRuns();
std::span<const WholeCase> UpperWhole();
std::span<const WholeCase> TitleWhole();

}  // namespace keel::model::jinja
