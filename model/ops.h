// The decoder's element-wise and attention operations as differentiable functions.
//
// On CPU they run Keel's kernels (common/cpu_kernels.h), on CUDA ATen's; fp32 and bf16. Weight
// gradients are added to Parameter::gradient by the backward itself.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/hf_config.h"
#include "parallel/parameter.h"

namespace keel::model {

// x / rms(x) * weight over the last dim. x [..., n] contiguous, weight [n].
at::Tensor RmsNorm(const at::Tensor& x, parallel::Parameter& weight, double eps);

// silu(gate) * up; gate_up [T, 2 F] with gate first, output [T, F].
at::Tensor SwiGlu(const at::Tensor& gate_up);

// Cosine and sine of every position, [max_position, head_dim / 2] fp32 each, with Llama-3's scaling
// when the config has it.
struct RopeTable {
  at::Tensor cosine;
  at::Tensor sine;
};
RopeTable MakeRopeTable(const HfConfig& config, int64_t positions, at::Device device);

// Where each token of a packed micro-batch stands.
struct Packing {
  at::Tensor positions;             // [T] int32, on the model's device; restart at each sequence
  std::vector<int64_t> boundaries;  // [sequences + 1], host: 0, …, T
};

struct AttentionShape {
  int64_t heads = 0;     // this rank's query heads
  int64_t kv_heads = 0;  // this rank's key/value heads
  int64_t head_dim = 0;
};

// Rotates the q and k heads of qkv [T, (heads + 2 kv_heads) * head_dim] by their positions.
at::Tensor ApplyRope(const at::Tensor& qkv, const AttentionShape& shape, const RopeTable& table,
                     const at::Tensor& positions);

// Per-head RMS norm of q and k in qkv (Qwen3).
at::Tensor NormalizeHeads(const at::Tensor& qkv, const AttentionShape& shape,
                          parallel::Parameter& q_norm, parallel::Parameter& k_norm, double eps);

// Causal attention within each sequence; softmax(q k^T / sqrt(head_dim)) v, grouped queries.
// qkv as above, output [T, heads * head_dim].
at::Tensor PackedAttention(const at::Tensor& qkv, const AttentionShape& shape,
                           const Packing& packing);

}  // namespace keel::model
