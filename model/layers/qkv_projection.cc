#include "model/layers/qkv_projection.h"

#include "model/ops/decode_ops.h"
#include "parallel/tensor/row_product.h"

namespace keel::model {

at::Tensor QkvProjection::Forward(const parallel::TensorParallel& tp, const at::Tensor& x) const {
  const at::Tensor whole = parallel::EnterColumns(x, tp);
  const at::Tensor first = parallel::Linear(whole, *weight, bias, tp.arithmetic);
  if (kv_weight == nullptr) return first;
  return at::cat({first, parallel::Linear(whole, *kv_weight, kv_bias, tp.arithmetic)}, 1);
}

void QkvProjection::Into(const at::Tensor& x, at::Tensor& out,
                         parallel::Arithmetic arithmetic) const {
  const auto project = [&](const parallel::Parameter& w, const parallel::Parameter* b,
                           at::Tensor& y) {
    parallel::LinearInto(x, w.value, b != nullptr ? &b->value : nullptr, y, arithmetic);
  };
  if (kv_weight == nullptr) return project(*weight, bias, out);
  at::Tensor q = at::empty({x.size(0), weight->rows()}, out.options());
  at::Tensor kv = at::empty({x.size(0), kv_weight->rows()}, out.options());
  project(*weight, bias, q);
  project(*kv_weight, kv_bias, kv);
  at::cat_out(out, {q, kv}, 1);
}

}  // namespace keel::model
