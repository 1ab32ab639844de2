// The model's shapes and tensors as what Keel's kernels for GPUs take.
#pragma once

#include <ATen/ATen.h>

#include "gpu/kernel_table.h"
#include "model/ops/ops.h"

namespace keel::model {

// qkv `in`, turned by its positions, to `out`, which may be it; see ApplyRope. Without a table
// nothing turns.
gpu::Rotate RotationOf(const at::Tensor& in, const AttentionShape& shape, const RopeTable* table,
                       const at::Tensor& positions, at::Tensor& out);

gpu::Gate DeviceGate(Activation activation);

}  // namespace keel::model
