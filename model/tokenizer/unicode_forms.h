// Unicode's normalization forms, by libutf8proc's tables (Unicode 14).
#pragma once

#include "model/tokenizer/aligned_text.h"

namespace keel::model {

struct UnicodeForm {
  bool compose = false;        // NFC, NFKC
  bool compatibility = false;  // NFKC, NFKD
};

void Normalize(UnicodeForm form, AlignedText* text);

}  // namespace keel::model
