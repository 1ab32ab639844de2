#include "model/layers/attention_layer.h"

#include <utility>

#include "model/ops/decode_ops.h"
#include "model/ops/paged_attention.h"
#include "model/ops/query_scale.h"
#include "model/ops/sigmoid_gate.h"
#include "parallel/tensor/device_kernels.h"
#include "parallel/tensor/tensor_parallel_layers.h"

namespace keel::model {

namespace {

// What the output's weight is multiplied with.
at::Tensor Attended(const AttentionLayer& layer, const at::Tensor& attended) {
  const auto* const latent = std::get_if<LatentProjection>(&layer.projection);
  return latent != nullptr ? latent->Values(attended) : attended;
}

}  // namespace

at::Tensor AttentionLayer::Forward(const TrainPass& pass, const at::Tensor& x) const {
  ProjectedHeads projected =
      std::visit([&](const auto& way) { return way.Forward(pass.tp, x); }, projection);
  at::Tensor heads = std::move(projected.heads);  // [T, (heads + 2 kv_heads) d]
  if (qk_norm == QkNorm::kPerHead) {
    heads = NormalizeHeads(heads, shape, *q_norm, *k_norm, width.norm);
  } else if (qk_norm == QkNorm::kFullWidth) {
    heads = NormalizeFullWidth(heads, shape, *q_norm, *k_norm, width,
                               pass.tp.arithmetic == parallel::Arithmetic::kBatchInvariant);
  }
  if (const Rotation* rotation = pass.rotations.Of(rope)) {
    heads = ApplyRope(heads, shape, rotation->table, rotation->rows);
    if (const at::Tensor& scales = rotation->table.query_scale; scales.defined())
      heads = ScaleQueries(heads, shape, scales, rotation->rows);
  }
  if (qk_norm == QkNorm::kPerTurnedHead)
    heads = NormalizeHeads(heads, shape, *q_norm, *k_norm, width.norm);
  at::Tensor attended = pass.prompts ? pass.prompts->AttendToLearn(heads, pass.packing, scores)
                                     : PackedAttention(heads, shape, pass.packing, scores);
  if (projected.gates.defined()) attended = SigmoidGate(attended, projected.gates);
  return parallel::RowParallelLinear(pass.tp, output, output_bias)
      .Forward(Attended(*this, attended));
}

void AttentionLayer::Into(DecodePass& pass, int64_t layer, const at::Tensor& x,
                          at::Tensor& out) const {
  at::Tensor& heads = pass.qkv;
  const bool fixed_order = pass.arithmetic == parallel::Arithmetic::kBatchInvariant;
  const at::Tensor gates =
      std::visit([&](const auto& way) { return way.Into(x, heads, pass.arithmetic); }, projection);
  if (qk_norm == QkNorm::kPerHead) {
    NormalizeHeadsInPlace(heads, shape, q_norm->value, k_norm->value, width.norm);
  } else if (qk_norm == QkNorm::kFullWidth) {
    NormalizeFullWidthInPlace(heads, shape, q_norm->value, k_norm->value, width, fixed_order);
  }
  const Rotation* rotation = pass.rotations.Of(rope);
  if (qk_norm == QkNorm::kPerTurnedHead) {
    if (rotation != nullptr) ApplyRope(heads, shape, rotation->table, rotation->rows);  // in place
    NormalizeHeadsInPlace(heads, shape, q_norm->value, k_norm->value, width.norm);
    rotation = nullptr;  // it is done
  }
  if (rotation != nullptr && rotation->table.query_scale.defined()) {
    ApplyRope(heads, shape, rotation->table, rotation->rows);  // in place
    ScaleQueriesInPlace(heads, shape, rotation->table.query_scale, rotation->rows);
    rotation = nullptr;  // it is done
  }
  const CachedLayer cache = {pass.sequences, pass.store, layer};
  if (const auto kernels = parallel::KernelsFor(heads); kernels && pass.plan) {
    AttendByKernels(*kernels, heads, shape, {*pass.plan, rotation, fixed_order}, cache, scores,
                    pass.attended);
  } else {
    if (rotation != nullptr) ApplyRope(heads, shape, rotation->table, rotation->rows);  // in place
    AttendInto(heads, shape, cache, scores, pass.attended);
  }
  const at::Tensor attended =
      gates.defined() ? SigmoidGate(pass.attended, gates) : Attended(*this, pass.attended);
  parallel::LinearInto(attended, *output, nullptr, out, pass.arithmetic);
}

}  // namespace keel::model
