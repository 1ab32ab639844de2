// How matches cut a piece of text: the five behaviours of `tokenizers`.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "common/enum_names.h"
#include "model/tokenizer/text/aligned_text.h"

namespace keel::model {

enum class SplitBehavior {
  kRemoved,             // matches are left out
  kIsolated,            // each match is a piece
  kMergedWithPrevious,  // a match belongs to what is before it, unless that is a match, too
  kMergedWithNext,      // ... to what comes after it
  kContiguous,          // matches that touch are one piece
};
constexpr auto NamesOf(SplitBehavior) {
  using enum SplitBehavior;
  return EnumNames<SplitBehavior>({{kRemoved, "Removed"},
                                   {kIsolated, "Isolated"},
                                   {kMergedWithPrevious, "MergedWithPrevious"},
                                   {kMergedWithNext, "MergedWithNext"},
                                   {kContiguous, "Contiguous"}});
}

struct SplitRule {
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // what lies between the matches counts as the matches
};

// Appends the pieces of text[piece], none of them empty, in bytes of the whole text. `matches` are
// in order, in bytes of the piece.
void SplitPiece(const SplitRule& rule, Span piece, std::span<const Span> matches,
                std::vector<Span>* pieces);

}  // namespace keel::model
