#include "model/layers/plain_feed_forward.h"

#include "model/ops/decode_ops.h"
#include "model/ops/plain_unit.h"
#include "parallel/tensor/tensor_parallel_layers.h"

namespace keel::model {

at::Tensor PlainFeedForward::Forward(const TrainPass& pass, const at::Tensor& x) const {
  const parallel::ColumnParallelLinear in(pass.tp, up, up_bias);
  const parallel::RowParallelLinear out(pass.tp, down, down_bias);
  return out.Forward(PlainUnit(in.Forward(x), activation));
}

void PlainFeedForward::Into(DecodePass& pass, const at::Tensor& x, at::Tensor& out) const {
  parallel::LinearInto(x, *up, up_bias, pass.activated, pass.arithmetic);
  PlainUnitInPlace(pass.activated, activation);
  parallel::LinearInto(pass.activated, *down, nullptr, out, pass.arithmetic);
}

}  // namespace keel::model
