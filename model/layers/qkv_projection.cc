#include "model/layers/qkv_projection.h"

#include <vector>

#include "model/ops/decode_ops.h"
#include "parallel/tensor/tensor_parallel_layers.h"

namespace keel::model {

ProjectedHeads QkvProjection::Forward(const parallel::TensorParallel& tp,
                                      const at::Tensor& x) const {
  const at::Tensor whole = parallel::EnterColumns(x, tp);
  ProjectedHeads out = {parallel::Linear(whole, *weight, bias, tp.arithmetic), {}};
  if (gates > 0) {
    const std::vector<at::Tensor> parts =
        out.heads.split_with_sizes({weight->rows() - gates, gates}, 1);
    out = {parts[0].contiguous(), parts[1]};
  }
  if (kv_weight != nullptr) {
    out.heads =
        at::cat({out.heads, parallel::Linear(whole, *kv_weight, kv_bias, tp.arithmetic)}, 1);
  }
  return out;
}

at::Tensor QkvProjection::Into(const at::Tensor& x, at::Tensor& out,
                               parallel::Arithmetic arithmetic) const {
  const auto project = [&](const parallel::Parameter& w, const parallel::Parameter* b,
                           at::Tensor& y) { parallel::LinearInto(x, w, b, y, arithmetic); };
  if (kv_weight == nullptr && gates == 0) {
    project(*weight, bias, out);
    return {};
  }
  at::Tensor first = at::empty({x.size(0), weight->rows()}, out.options());
  project(*weight, bias, first);
  std::vector<at::Tensor> heads = {first.narrow(1, 0, weight->rows() - gates)};
  if (kv_weight != nullptr) {
    at::Tensor kv = at::empty({x.size(0), kv_weight->rows()}, out.options());
    project(*kv_weight, kv_bias, kv);
    heads.push_back(kv);
  }
  at::cat_out(out, heads, 1);
  return gates > 0 ? first.narrow(1, weight->rows() - gates, gates) : at::Tensor();
}

}  // namespace keel::model
