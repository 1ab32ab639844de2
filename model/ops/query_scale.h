// What queries are multiplied by for where they stand (RopeSpec::query_beta), after they were
// turned.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "model/config/rope_spec.h"
#include "model/ops/ops.h"

namespace keel::model {

// The factor of each position, [positions] fp32; undefined where the spec has none.
at::Tensor QueryScales(const RopeSpec& spec, int64_t positions, at::Device device);

// The heads [T, (heads + 2 kv_heads) d] with their queries times scales[row of the token], which is
// rounded to the heads' dtype first, as transformers has it. rows [T] int32. Differentiable.
at::Tensor ScaleQueries(const at::Tensor& heads, const AttentionShape& shape,
                        const at::Tensor& scales, const at::Tensor& rows);
// For generation: in place, without gradients.
void ScaleQueriesInPlace(at::Tensor& heads, const AttentionShape& shape, const at::Tensor& scales,
                         const at::Tensor& rows);

}  // namespace keel::model
