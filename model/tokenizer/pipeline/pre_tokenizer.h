// PreTokenizer: cuts a text into the pieces that the model never merges across. Immutable,
// thread-safe.
#pragma once

#include <memory>
#include <vector>

#include "model/tokenizer/pipeline/component.h"
#include "model/tokenizer/pipeline/pattern.h"
#include "model/tokenizer/text/aligned_text.h"

namespace keel::model {

// A text and its pieces, in order; what lies between pieces is no part of the result.
struct PreTokens {
  AlignedText text;
  std::vector<Span> pieces;
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void Apply(PreTokens* tokens, PatternScratch* scratch) const = 0;
};

struct PreTokenizers {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  // The last step of the file spells each piece in the byte alphabet. It is none of the steps: who
  // looks pieces up does it, for those that are not known yet.
  bool spells_bytes = false;
};

// Sequence, Split, ByteLevel, Digits, Metaspace, Punctuation, Whitespace, WhitespaceSplit; others
// are refused by name. Throws Error(kInvalidData).
PreTokenizers MakePreTokenizers(const Component& component);

}  // namespace keel::model
