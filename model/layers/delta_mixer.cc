#include "model/layers/delta_mixer.h"

#include <vector>

#include "model/ops/decode_ops.h"
#include "parallel/tensor/tensor_parallel_layers.h"

namespace keel::model {

namespace {

// The columns of the input's product.
struct Projected {
  at::Tensor qkv, gate, b, a;
};
Projected SplitOf(const at::Tensor& projected, const DeltaShape& shape) {
  const std::vector<at::Tensor> parts = projected.split_with_sizes(
      {shape.channels(), shape.values(), shape.value_heads, shape.value_heads}, 1);
  return {parts[0], parts[1], parts[2], parts[3]};
}

}  // namespace

at::Tensor DeltaMixer::Forward(const TrainPass& pass, const at::Tensor& x) const {
  const Projected in = SplitOf(
      parallel::Linear(parallel::EnterColumns(x, pass.tp), *input, nullptr, pass.tp.arithmetic),
      shape);
  const at::Tensor qkv = CausalConvolution(in.qkv, *convolution, pass.packing);
  const at::Tensor mixed = GatedDeltaRule({qkv, in.a, in.b}, gates, shape, pass.packing);
  const at::Tensor normed = RmsNorm(mixed.view({-1, shape.value_dim}), *value_norm, norm);
  const at::Tensor gated =
      GatedUnit(at::cat({in.gate, normed.view(mixed.sizes())}, 1), Activation::kSilu);
  return parallel::RowParallelLinear(pass.tp, output).Forward(gated);
}

void DeltaMixer::Into(DecodePass& pass, int64_t layer, const at::Tensor& x, at::Tensor& out) const {
  at::Tensor projected = at::empty({x.size(0), input->rows()}, x.options());
  parallel::LinearInto(x, *input, nullptr, projected, pass.arithmetic);
  const Projected in = SplitOf(projected, shape);
  const RecurrentLayer states = {pass.sequences, pass.store.recurrent(layer)};
  const at::Tensor qkv = CausalConvolution(in.qkv, *convolution, states);
  const at::Tensor mixed = GatedDeltaRule({qkv, in.a, in.b}, gates, shape, states);
  at::Tensor heads = mixed.view({-1, shape.value_dim});
  RmsNormInto(heads, value_norm->value, norm, heads);
  at::Tensor gated = at::empty_like(mixed);
  GatedUnitInto(at::cat({in.gate, mixed}, 1), Activation::kSilu, gated);
  parallel::LinearInto(gated, *output, nullptr, out, pass.arithmetic);
}

}  // namespace keel::model
