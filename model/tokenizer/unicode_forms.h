// Unicode's normalization forms, as `tokenizers` has them: by the tables of Unicode 9.
#pragma once

#include "model/tokenizer/aligned_text.h"

namespace keel::model {

struct UnicodeForm {
  bool compose = false;        // NFC, NFKC
  bool compatibility = false;  // NFKC, NFKD
};

void Normalize(UnicodeForm form, AlignedText* text);

}  // namespace keel::model
