// What Git LFS leaves where a large file was not downloaded: three short lines of text. Whoever
// clones a model without `git lfs` has them in the place of weights, tokenizer and template.
#pragma once

#include <string_view>

#include "common/status.h"

namespace keel {

// Whether the bytes, a file's first ones, are such a pointer's.
bool IsLfsPointer(std::string_view begin);

// kInvalidData for the file `where`, with the way to the real one.
Status IsOnlyLfsPointer(std::string_view where);

}  // namespace keel
