// Learned positions (Vaswani et al. 2017, 3.5): a table with a row for each position, which is
// added to the embedding of the token that stands there.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "parallel/parameter.h"

namespace keel::model {

// x [T, hidden] + table[first + positions]; positions [T] int32, on x's device, each first + p a
// row of the table. Differentiable.
at::Tensor AddPositions(const at::Tensor& x, const at::Tensor& positions, int64_t first,
                        parallel::Parameter& table);
// For generation: in place, without gradients.
void AddPositionsInPlace(at::Tensor& x, const at::Tensor& positions, int64_t first,
                         const parallel::Parameter& table);

}  // namespace keel::model
