// FillNormal: initial weights, the same under every layout.
#pragma once

#include "common/philox.h"
#include "common/tensors/shard_table.h"

namespace keel {

// Fills a shard of a float tensor (F32 or BF16) with N(mean, stddev): the element at global
// row-major index i is draw i of the stream, whatever the box. Round to nearest even for BF16.
void FillNormal(const Philox& rng, const Dims& shape, const Box& box, const StridedView& view,
                DType dtype, double mean, double stddev);

}  // namespace keel
