// ByteRange: a piece of a text or of a file, [begin, end) in bytes.
#pragma once

#include <cstdint>

namespace keel {

struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

}  // namespace keel
