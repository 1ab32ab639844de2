// What a file is that holds no text, by its first bytes.
#pragma once

#include <string_view>

namespace keel::trainer {

// "Parquet", "an Arrow file", ... of a file that begins with `head`, which was found not to be
// UTF-8 text, or which only a name of that format makes suspicious; "" when it is none that is
// known.
std::string_view BinaryFormatOf(std::string_view head);

}  // namespace keel::trainer
