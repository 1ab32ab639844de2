// The tokenizer of bytes, which needs no files: ids 0..255 are the bytes, 256 begins and 257 ends
// a text, 258 pads.
#pragma once

#include <memory>

#include "model/tokenizer/tokenizer.h"

namespace keel::model {

std::unique_ptr<Tokenizer> MakeByteTokenizer();

}  // namespace keel::model
