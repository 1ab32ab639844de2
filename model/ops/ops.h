// The decoder's element-wise and attention operations as differentiable functions.
//
// On CPU they run Keel's kernels for hosts (common/kernels/cpu_kernels.h), on CUDA its kernels for
// GPUs (gpu/), or ATen's where the build has none; fp32 and bf16. Weight gradients are added to
// Parameter::gradient by the backward itself.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/config/hf_config.h"
#include "parallel/parameter.h"

namespace keel::model {

// A norm's constants: out = x / rms(x) * (offset + weight), the mean of squares plus eps under the
// root.
struct NormOptions {
  double eps = 0;
  double offset = 0;  // 1 where a family's weights are what is added to one
};

// Over the last dim. x [..., n] contiguous, weight [n].
at::Tensor RmsNorm(const at::Tensor& x, parallel::Parameter& weight, const NormOptions& options);

// x + y, and its norm. x and y [..., n] contiguous.
struct AddedNorm {
  at::Tensor sum, normed;
};
AddedNorm AddRmsNorm(const at::Tensor& x, const at::Tensor& y, parallel::Parameter& weight,
                     const NormOptions& options);

// activation(gate) * up; gate_up [T, 2 F] with gate first, output [T, F].
at::Tensor GatedUnit(const at::Tensor& gate_up, Activation activation);
// The gradient by gate_up of what has the gradient dout [T, F], contiguous. For backwards.
at::Tensor GatedUnitGradient(const at::Tensor& dout, const at::Tensor& gate_up,
                             Activation activation);

// Cosine and sine of every position, [positions, rotated dims / 2] fp32 each, times the spec's
// attention factor, for texts of `length` tokens (see RopeFrequencies).
struct RopeTable {
  at::Tensor cosine;
  at::Tensor sine;
  bool interleaved = false;     // see RopeSpec
  at::Tensor query_scale = {};  // [positions] fp32, see query_scale.h; undefined: queries have none
};
struct RopeExtent {
  int64_t positions = 0;
  int64_t length = 0;
};
RopeTable MakeRopeTable(const RopeSpec& spec, int64_t head_dim, const RopeExtent& extent,
                        at::Device device);

// Where each token of a packed micro-batch stands.
struct Packing {
  at::Tensor positions;             // [T] int32, on the model's device; restart at each sequence
  std::vector<int64_t> boundaries;  // [sequences + 1], host: 0, …, T
  // [sequences]: of the text that each is of, whose last token, which predicts nothing, may be left
  // out; empty: all sequences are whole texts.
  std::vector<int64_t> lengths = {};

  size_t sequences() const { return boundaries.empty() ? 0 : boundaries.size() - 1; }
  int64_t tokens(size_t sequence) const { return boundaries[sequence + 1] - boundaries[sequence]; }
  int64_t length(size_t sequence) const {
    return lengths.empty() ? tokens(sequence) : lengths[sequence];
  }
};

struct AttentionShape {
  int64_t heads = 0;     // this rank's query heads
  int64_t kv_heads = 0;  // this rank's key/value heads
  int64_t head_dim = 0;
};

// How scores become weights.
struct ScoreOptions {
  int64_t window = 0;  // tokens that a token sees, itself among them; 0: all before it
  double scale = 0;    // 0: 1 / sqrt(head_dim)
  double softcap = 0;  // 0: none
  parallel::Parameter* sinks = nullptr;  // [heads], see attention_sinks.h; null: none
  double ScaleOf(const AttentionShape& shape) const;
};

// Rotates the q and k heads of qkv [T, (heads + 2 kv_heads) * head_dim] by their positions; of each
// head the first dims, twice as many as the table's rows have.
at::Tensor ApplyRope(const at::Tensor& qkv, const AttentionShape& shape, const RopeTable& table,
                     const at::Tensor& positions);

// Per-head RMS norm of q and k in qkv.
at::Tensor NormalizeHeads(const at::Tensor& qkv, const AttentionShape& shape,
                          parallel::Parameter& q_norm, parallel::Parameter& k_norm,
                          const NormOptions& options);

// Causal attention within each sequence; softmax(scale q k^T) v, grouped queries. With a softcap,
// or with a window shorter than a sequence, an exact computation by blocks of queries, whose memory
// is bounded (see exact_attention.h).
// qkv as above, output [T, heads * head_dim].
at::Tensor PackedAttention(const at::Tensor& qkv, const AttentionShape& shape,
                           const Packing& packing, const ScoreOptions& options = {});

}  // namespace keel::model
