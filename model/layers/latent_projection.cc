#include "model/layers/latent_projection.h"

#include <vector>

#include "model/ops/decode_ops.h"
#include "parallel/tensor/tensor_parallel_layers.h"

namespace keel::model {

namespace {

// transformers' classes of these models give these norms this constant, whatever rms_norm_eps is.
constexpr NormOptions kSharedNorm = {.eps = 1e-6};

// Queries, keys and values of all heads as attention takes them: q [T, heads key_dims], kv
// [T, heads kv_dims] and the key that all heads share, [T, turned_dims].
at::Tensor Heads(const LatentSpec& spec, const AttentionShape& shape, const at::Tensor& q,
                 const at::Tensor& kv, const at::Tensor& turned) {
  const int64_t rows = q.size(0);
  const at::Tensor query = q.view({rows, shape.heads, spec.key_dims()});
  const at::Tensor key_value = kv.view({rows, shape.heads, spec.kv_dims()});
  // Of every head these, one behind another, and zeros: [T, heads head_dim].
  const auto heads = [&](std::vector<at::Tensor> parts, int64_t dims) {
    if (dims < shape.head_dim)
      parts.push_back(q.new_zeros({rows, shape.heads, shape.head_dim - dims}));
    return at::cat(parts, 2).view({rows, shape.heads * shape.head_dim});
  };
  return at::cat({heads({query.narrow(2, spec.plain_dims, spec.turned_dims),
                         query.narrow(2, 0, spec.plain_dims)},
                        spec.key_dims()),
                  heads({turned.unsqueeze(1).expand({rows, shape.heads, spec.turned_dims}),
                         key_value.narrow(2, 0, spec.plain_dims)},
                        spec.key_dims()),
                  heads({key_value.narrow(2, spec.plain_dims, spec.value_dims)}, spec.value_dims)},
                 1);
}

}  // namespace

ProjectedHeads LatentProjection::Forward(const parallel::TensorParallel& tp,
                                         const at::Tensor& x) const {
  const auto project = [&tp](const at::Tensor& in, parallel::Parameter* w, parallel::Parameter* b) {
    return parallel::Linear(in, *w, b, tp.arithmetic);
  };
  const at::Tensor whole = parallel::EnterColumns(x, tp);
  const at::Tensor q_of =
      q_shared == nullptr ? whole
                          : RmsNorm(project(whole, q_shared, q_shared_bias), *q_norm, kSharedNorm);
  const at::Tensor shared = project(whole, kv_shared, kv_shared_bias);
  const at::Tensor kv_of =
      RmsNorm(shared.narrow(1, 0, spec.kv_rank).contiguous(), *kv_norm, kSharedNorm);
  return {Heads(spec, shape, project(q_of, q_heads, nullptr), project(kv_of, kv_heads, nullptr),
                shared.narrow(1, spec.kv_rank, spec.turned_dims)),
          {}};
}

at::Tensor LatentProjection::Into(const at::Tensor& x, at::Tensor& out,
                                  parallel::Arithmetic arithmetic) const {
  const auto project = [&](const at::Tensor& in, const parallel::Parameter* w,
                           const parallel::Parameter* b) {
    at::Tensor y = at::empty({in.size(0), w->rows()}, out.options());
    parallel::LinearInto(in, *w, b, y, arithmetic);
    return y;
  };
  at::Tensor q_of = x;
  if (q_shared != nullptr) {
    q_of = project(x, q_shared, q_shared_bias);
    RmsNormInto(q_of, q_norm->value, kSharedNorm, q_of);
  }
  const at::Tensor shared = project(x, kv_shared, kv_shared_bias);
  at::Tensor kv_of = shared.narrow(1, 0, spec.kv_rank).contiguous();
  RmsNormInto(kv_of, kv_norm->value, kSharedNorm, kv_of);
  out.copy_(Heads(spec, shape, project(q_of, q_heads, nullptr), project(kv_of, kv_heads, nullptr),
                  shared.narrow(1, spec.kv_rank, spec.turned_dims)));
  return {};
}

at::Tensor LatentProjection::Values(const at::Tensor& attended) const {
  if (spec.value_dims == shape.head_dim) return attended;
  const int64_t rows = attended.size(0);
  return attended.view({rows, shape.heads, shape.head_dim})
      .narrow(2, 0, spec.value_dims)
      .reshape({rows, shape.heads * spec.value_dims})
      .contiguous();  // of one head the above is a view
}

}  // namespace keel::model
