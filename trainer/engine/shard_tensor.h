// Shards of a table as tensors over their memory.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "common/tensors/shard_table.h"

namespace keel::trainer {

// `box`, which lies in the shard's, where the shard's view is: memory of `device`, not owned. Bits
// of the dtype's size, whatever they mean.
at::Tensor TensorOf(const Shard& shard, const Box& box, DType dtype, const at::Device& device);

// BoxDigest of the shard, whose tensor this is. Where Keel's kernels are not built, a device's
// values are brought to host memory for it.
uint64_t ShardDigest(const TensorInfo& tensor, const Shard& shard, const at::Device& device);

}  // namespace keel::trainer
