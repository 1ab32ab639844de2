// The decoder's operations for generation: into memory given by the caller, without gradients.
//
// On CPU they run Keel's kernels for hosts (common/kernels/cpu_decode.h,
// common/kernels/cpu_kernels.h), whose results do not depend on what else is in the batch; on CUDA
// its kernels for GPUs (gpu/), and ATen's. fp32 and bf16; rounding between operations as in
// training (model/ops/ops.h).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/ops/kv_cache.h"
#include "model/ops/ops.h"
#include "parallel/groups/process_group.h"
#include "parallel/parameter.h"

namespace keel::model {

// See RmsNorm; rows of n. out may be x.
void RmsNormInto(const at::Tensor& x, const at::Tensor& weight, const NormOptions& options,
                 at::Tensor& out);
// Per-head RMS norm of q and k in qkv [T, (heads + 2 kv_heads) d], in place.
void NormalizeHeadsInPlace(at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& q_weight,
                           const at::Tensor& k_weight, const NormOptions& options);
// out [T, F] = activation(gate) * up of gate_up [T, 2 F].
void GatedUnitInto(const at::Tensor& gate_up, Activation activation, at::Tensor& out);
// x += y, in x's dtype.
void AddInto(at::Tensor& x, const at::Tensor& y);
// x += y, and its norm to `out`.
void AddRmsNormInto(at::Tensor& x, const at::Tensor& y, const at::Tensor& weight,
                    const NormOptions& options, at::Tensor& out);

// What AttendInto reads besides queries, keys and values.
struct CachedLayer {
  const std::vector<DecodeSequence>& sequences;
  const KvStore& store;
  int64_t layer = 0;
};
// Writes the keys and values in qkv to the blocks of a layer, and attends: each token of each
// sequence to all tokens up to itself, or to those in its window. out [T, heads d].
void AttendInto(const at::Tensor& qkv, const AttentionShape& shape, const CachedLayer& cache,
                const ScoreOptions& options, at::Tensor& out);

}  // namespace keel::model
