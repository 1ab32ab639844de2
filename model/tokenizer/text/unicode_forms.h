// Unicode's normalization forms, as `tokenizers` has them: by the tables of Unicode 9.
#pragma once

#include <vector>

#include "model/tokenizer/text/aligned_text.h"

namespace keel::model {

struct UnicodeForm {
  bool compose = false;        // NFC, NFKC
  bool compatibility = false;  // NFKC, NFKD
};

// Immutable, thread-safe.
class UnicodeNormalizer {
 public:
  explicit UnicodeNormalizer(UnicodeForm form);
  void Apply(AlignedText* text) const;

 private:
  bool IsSettled(uint32_t code_point) const {
    return code_point < settled_.size() && settled_[code_point];
  }

  UnicodeForm form_;
  // Characters that are their own normalized form and join nothing before them: most of any text. A
  // part of a text from one of them to the next is normalized by itself.
  std::vector<bool> settled_;
};

}  // namespace keel::model
