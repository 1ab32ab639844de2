// StreamCopy: copies into memory that nobody will look at for a while, past the caches.
//
// A plain store first fetches the line that it overwrites; a non-temporal one does not, which saves
// a third of the memory traffic where a copy's source is hot and its destination is large.
#pragma once

#include <cstddef>
#include <cstdint>

namespace keel {

// Pieces of one copy. Other threads may look at the destination once this is destroyed (and they
// were told so in the usual way). Not thread-safe. Plain memcpy on CPUs other than x86-64.
class StreamCopy {
 public:
  StreamCopy() = default;
  ~StreamCopy();
  StreamCopy(const StreamCopy&) = delete;
  StreamCopy& operator=(const StreamCopy&) = delete;

  // The ranges do not overlap. Short pieces go through the caches.
  void operator()(std::byte* to, const std::byte* from, int64_t bytes);

 private:
  bool streamed_ = false;
};

}  // namespace keel
