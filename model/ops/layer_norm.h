// Layer normalisation (Ba et al. 2016) over the last dim, for training and for generation: by
// kernels for hosts (common/kernels/layer_norm.h), elsewhere by PyTorch's operations in fp32.
#pragma once

#include <ATen/ATen.h>

#include "model/ops/ops.h"
#include "parallel/parameter.h"

namespace keel::model {

// out = (x - mean) / sqrt(variance + eps) * (offset + weight) + bias. x [..., n] contiguous, weight
// and bias [n]; bias may be null. Differentiable; the weights' gradients are summed in a fixed
// order.
at::Tensor LayerNorm(const at::Tensor& x, parallel::Parameter& weight, parallel::Parameter* bias,
                     const NormOptions& options);
// For generation: rows of n, without gradients. out may be x.
void LayerNormInto(const at::Tensor& x, const parallel::Parameter& weight,
                   const parallel::Parameter* bias, const NormOptions& options, at::Tensor& out);

}  // namespace keel::model
