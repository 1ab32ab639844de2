// A digest of a tensor's values that can be taken in parts: whoever holds which boxes, the digests
// of boxes that cover a tensor once add up (mod 2^64) to the digest of the tensor.
//
// It is the sum, over all elements, of a 64-bit word that is mixed from index and bits. It guards
// against lost, stale and flipped data, not against an adversary. Torch-free.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/tensors/box.h"
#include "common/tensors/dtype.h"
#include "common/tensors/shard_table.h"

namespace keel {

// The digest of `box`, which lies in the shard's box `view_box` and a tensor of `shape`, in the
// memory of `view`.
uint64_t BoxDigest(const Dims& shape, DType dtype, const Box& box, const Box& view_box,
                   const StridedView& view);

// How often the digest of a tensor of this name counts in the digest of a model, which is their
// sum: an odd number. So a model's digest is the same under every layout, and can be taken in
// parts, too.
uint64_t DigestWeight(std::string_view name);

}  // namespace keel
