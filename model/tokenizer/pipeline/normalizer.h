// Normalizer: what a tokenizer does to a text before it splits it. Immutable, thread-safe.
#pragma once

#include <memory>

#include "model/tokenizer/pipeline/component.h"
#include "model/tokenizer/pipeline/pattern.h"
#include "model/tokenizer/text/aligned_text.h"

namespace keel::model {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void Apply(AlignedText* text, PatternScratch* scratch) const = 0;
};

// Sequence, NFC, NFKC, NFD, NFKD, Replace, Prepend, Strip, Lowercase; others are refused by name.
// Throws Error(kInvalidData).
std::unique_ptr<Normalizer> MakeNormalizer(const Component& component);

// The pattern of a Replace or a Split: {"String": ...} or {"Regex": ...}. Throws.
Pattern ReadPattern(const Component& component);

}  // namespace keel::model
