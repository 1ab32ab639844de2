#include "model/layers/norm.h"

#include "model/ops/decode_ops.h"
#include "model/ops/layer_norm.h"

namespace keel::model {

at::Tensor Norm::Forward(const at::Tensor& x) const {
  return kind == NormKind::kLayer ? LayerNorm(x, *weight, bias, options)
                                  : RmsNorm(x, *weight, options);
}

AddedNorm Norm::ForwardSum(const at::Tensor& x, const at::Tensor& y) const {
  if (kind == NormKind::kRms) return AddRmsNorm(x, y, *weight, options);
  const at::Tensor sum = x + y;
  return {sum, LayerNorm(sum, *weight, bias, options)};
}

void Norm::Into(const at::Tensor& x, at::Tensor& out) const {
  if (kind == NormKind::kLayer) return LayerNormInto(x, *weight, bias, options, out);
  RmsNormInto(x, weight->value, options, out);
}

void Norm::SumInto(at::Tensor& x, const at::Tensor& y, at::Tensor& out) const {
  if (kind == NormKind::kRms) return AddRmsNormInto(x, y, weight->value, options, out);
  AddInto(x, y);
  LayerNormInto(x, *weight, bias, options, out);
}

}  // namespace keel::model
