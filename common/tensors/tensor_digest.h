// A digest of a tensor's values that can be taken in parts: whoever holds which boxes, the digests
// of boxes that cover a tensor once add up (mod 2^64) to the digest of the tensor.
//
// It is the sum, over all elements, of (bits + 1) * ElementWeight: an odd number for its block of
// kDigestBlock elements, times one for its place within it. Elements of fewer than 32 bits share
// the number of a 32-bit word, shifted to where each stands in the word, so that a word of them
// costs one multiplication. So a single element that differs is always seen, and so are two (of up
// to 32 bits) of one block that changed places; other changes cancel by chance alone. It guards
// against lost, stale and flipped data, not against an adversary. Torch-free.
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

// Of the 32-bit word (or the wider element) at `place` of every block: no two are the same. By a
// 32-bit mixer of as little bias (C. Wellons, "Prospecting for Hash Functions", 2018).
constexpr uint32_t PlaceWeight(uint32_t place) {
  uint32_t h = place + 1;
  h = (h ^ (h >> 16)) * 0x7FEB352D;
  h = (h ^ (h >> 15)) * 0x846CA68B;
  return (h ^ (h >> 16)) | 1;
}

// Of the element at `place` of every block, where elements have `element_size` bytes.
constexpr uint64_t WeightInBlock(int64_t element_size, int64_t place) {
  const int64_t in_word = element_size < 4 ? 4 / element_size : 1;
  return uint64_t{PlaceWeight(static_cast<uint32_t>(place / in_word))}
         << (place % in_word * element_size * 8);
}

// Of the element at `index` of a tensor.
constexpr uint64_t ElementWeight(int64_t element_size, int64_t index) {
  return BlockWeight(static_cast<uint64_t>(index / kDigestBlock)) *
         WeightInBlock(element_size, index % kDigestBlock);
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
