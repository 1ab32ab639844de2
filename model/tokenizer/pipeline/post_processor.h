// PostProcessor: what a tokenizer does to the ids of a text: special ids before and after it, and
// offsets without the spaces of byte-level tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "model/tokenizer/pipeline/component.h"

namespace keel::model {

struct PostProcessor {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
  bool has_template = false;
  // Of each ByteLevel that takes a token's spaces off its offsets, whether it leaves the one that
  // the tokenizer put before the text.
  std::vector<bool> trims;
};

// TemplateProcessing (its template for one text), ByteLevel, Sequence; others are refused by name.
// Throws Error(kInvalidData).
PostProcessor MakePostProcessor(const Component& component);

}  // namespace keel::model
