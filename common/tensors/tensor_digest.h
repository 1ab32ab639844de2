// A digest of a tensor's values that can be taken in parts: whoever holds which boxes, the digests
// of boxes that cover a tensor once add up (mod 2^64) to the digest of the tensor.
//
// It is the sum, over all elements, of (bits + 1) times two odd numbers that stand for its place:
// that of its block of kDigestBlock elements, and that within the block. So a single element that
// differs is always seen, and so are two (of up to 32 bits) of one block that changed places; other
// changes cancel by chance alone. It guards against lost, stale and flipped data, not against an
// adversary. Torch-free.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/tensors/box.h"
#include "common/tensors/dtype.h"
#include "common/tensors/shard_table.h"

namespace keel {

inline constexpr int64_t kDigestBlock = 2048;

// Of the elements of a block; by the finalizer of splitmix64.
constexpr uint64_t BlockWeight(uint64_t block) {
  uint64_t h = (block + 1) * 0x9E3779B97F4A7C15;
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EB;
  return (h ^ (h >> 31)) | 1;
}

// Of the element at `place` of every block: no two are the same. By a 32-bit mixer of as little
// bias (C. Wellons, "Prospecting for Hash Functions", 2018).
constexpr uint32_t PlaceWeight(uint32_t place) {
  uint32_t h = place + 1;
  h = (h ^ (h >> 16)) * 0x7FEB352D;
  h = (h ^ (h >> 15)) * 0x846CA68B;
  return (h ^ (h >> 16)) | 1;
}

// The digest of `box`, which lies in the shard's box `view_box` and a tensor of `shape`, in the
// memory of `view`.
uint64_t BoxDigest(const Dims& shape, DType dtype, const Box& box, const Box& view_box,
                   const StridedView& view);

// How often the digest of a tensor of this name counts in the digest of a model, which is their
// sum: an odd number. So a model's digest is the same under every layout, and can be taken in
// parts, too.
uint64_t DigestWeight(std::string_view name);

}  // namespace keel
