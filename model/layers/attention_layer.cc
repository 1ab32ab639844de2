#include "model/layers/attention_layer.h"

#include "model/ops/decode_ops.h"

namespace keel::model {

at::Tensor AttentionLayer::Forward(const TrainPass& pass, const at::Tensor& x) const {
  at::Tensor heads = qkv.Forward(pass.tp, x);  // [T, (heads + 2 kv_heads) d]
  if (qk_norm == QkNorm::kPerHead) {
    heads = NormalizeHeads(heads, shape, *q_norm, *k_norm, width.norm);
  } else if (qk_norm == QkNorm::kFullWidth) {
    heads = NormalizeFullWidth(heads, shape, *q_norm, *k_norm, width);
  }
  if (const Rotation* rotation = pass.rotations.Of(rope))
    heads = ApplyRope(heads, shape, rotation->table, rotation->rows);
  const at::Tensor attended = PackedAttention(heads, shape, pass.packing, scores);
  return parallel::RowParallelLinear(pass.tp, output, output_bias).Forward(attended);
}

void AttentionLayer::Into(DecodePass& pass, int64_t layer, const at::Tensor& x,
                          at::Tensor& out) const {
  at::Tensor& heads = pass.qkv;
  qkv.Into(x, heads, pass.fixed_height);
  if (qk_norm == QkNorm::kPerHead) {
    NormalizeHeadsInPlace(heads, shape, q_norm->value, k_norm->value, width.norm);
  } else if (qk_norm == QkNorm::kFullWidth) {
    NormalizeFullWidthInPlace(heads, shape, q_norm->value, k_norm->value, width, pass.fixed_height);
  }
  if (const Rotation* rotation = pass.rotations.Of(rope))
    ApplyRope(heads, shape, rotation->table, rotation->rows);  // in place
  AttendInto(heads, shape, {pass.sequences, pass.store, layer}, scores, pass.attended);
  LinearInto(pass.attended, output->value, nullptr, out, pass.fixed_height);
}

}  // namespace keel::model
