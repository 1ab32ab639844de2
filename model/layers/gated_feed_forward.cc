#include "model/layers/gated_feed_forward.h"

#include "model/ops/decode_ops.h"
#include "model/ops/ops.h"
#include "parallel/tensor/tensor_parallel_layers.h"

namespace keel::model {

at::Tensor GatedFeedForward::Forward(const TrainPass& pass, const at::Tensor& x) const {
  const parallel::ColumnParallelLinear in(pass.tp, gate_up, gate_up_bias);
  const parallel::RowParallelLinear out(pass.tp, down, down_bias);
  return out.Forward(GatedUnit(in.Forward(x), activation));
}

void GatedFeedForward::Into(DecodePass& pass, const at::Tensor& x, at::Tensor& out) const {
  parallel::LinearInto(x, *gate_up, gate_up_bias, pass.gate_up, pass.arithmetic);
  GatedUnitInto(pass.gate_up, activation, pass.activated);
  parallel::LinearInto(pass.activated, *down, nullptr, out, pass.arithmetic);
}

}  // namespace keel::model
