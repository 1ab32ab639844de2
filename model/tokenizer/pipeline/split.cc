#include "model/tokenizer/pipeline/split.h"

namespace keel::model {

namespace {

struct Part {
  Span span;
  bool match = false;
};

// The piece from its start to its end: matches and what lies between them.
std::vector<Part> PartsOf(const SplitRule& rule, size_t size, std::span<const Span> matches) {
  std::vector<Part> parts;
  parts.reserve(2 * matches.size() + 1);
  size_t last = 0;
  for (const Span& match : matches) {
    if (last != match.begin) parts.push_back({{last, match.begin}, rule.invert});
    parts.push_back({match, !rule.invert});
    last = match.end;
  }
  if (last != size) parts.push_back({{last, size}, rule.invert});
  return parts;
}

}  // namespace

void SplitPiece(const SplitRule& rule, Span piece, std::span<const Span> matches,
                std::vector<Span>* pieces) {
  const auto add = [&](Span span) {
    if (span.size() > 0) pieces->push_back({piece.begin + span.begin, piece.begin + span.end});
  };
  if (rule.behavior == SplitBehavior::kIsolated) {  // which nearly all tokenizers use
    size_t last = 0;
    for (const Span& match : matches) {
      add({last, match.begin});
      add(match);
      last = match.end;
    }
    add({last, piece.size()});
    return;
  }
  const std::vector<Part> parts = PartsOf(rule, piece.size(), matches);
  Span open;  // what may still grow; empty parts grow it by nothing
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    if (rule.behavior == SplitBehavior::kRemoved) {
      if (!part.match) add(part.span);
      continue;
    }
    const bool before = i > 0 && parts[i - 1].match;
    bool joins = false;
    if (rule.behavior == SplitBehavior::kContiguous) joins = i > 0 && part.match == before;
    if (rule.behavior == SplitBehavior::kMergedWithPrevious) joins = i > 0 && part.match && !before;
    if (rule.behavior == SplitBehavior::kMergedWithNext) joins = i > 0 && !part.match && before;
    if (joins) {
      open.end = part.span.end;
    } else {
      add(open);
      open = part.span;
    }
  }
  add(open);
}

}  // namespace keel::model
