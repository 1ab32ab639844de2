#include "model/ops/query_scale.h"

#include <cmath>

namespace keel::model {

namespace {

// [T, 1]
at::Tensor OfTokens(const at::Tensor& scales, const at::Tensor& rows, at::ScalarType dtype) {
  return scales.index_select(0, rows).to(dtype).unsqueeze(1);
}

}  // namespace

at::Tensor QueryScales(const RopeSpec& spec, int64_t positions, at::Device device) {
  if (spec.query_beta <= 0) return {};
  at::Tensor scales = at::empty({positions}, at::kFloat);
  const auto beta = static_cast<float>(spec.query_beta);
  for (int64_t p = 0; p < positions; ++p) {
    const auto times = static_cast<float>(p / spec.query_positions);
    scales.data_ptr<float>()[p] = 1.0f + beta * std::log(1.0f + times);
  }
  return scales.to(device);
}

at::Tensor ScaleQueries(const at::Tensor& heads, const AttentionShape& shape,
                        const at::Tensor& scales, const at::Tensor& rows) {
  const int64_t q = shape.heads * shape.head_dim;
  const at::Tensor scaled = heads.narrow(1, 0, q) * OfTokens(scales, rows, heads.scalar_type());
  return at::cat({scaled, heads.narrow(1, q, heads.size(1) - q)}, 1);
}

void ScaleQueriesInPlace(at::Tensor& heads, const AttentionShape& shape, const at::Tensor& scales,
                         const at::Tensor& rows) {
  heads.narrow(1, 0, shape.heads * shape.head_dim)
      .mul_(OfTokens(scales, rows, heads.scalar_type()));
}

}  // namespace keel::model
