// Compress: for messages between ranks that say nearly the same again and again, such as tables.
//
// LZ77 without entropy coding: runs of bytes as they are, and copies of what came before. Fast, no
// format for disks, and the same bytes for the same input.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "common/status.h"

namespace keel {

std::string Compress(std::string_view bytes);
// kInvalidData when it is nothing that Compress makes, or more than `limit` bytes.
Result<std::string> Decompress(std::string_view packed, size_t limit);

}  // namespace keel
