// The activation of a feed-forward without a gate: by kernels for hosts
// (common/kernels/activation.h), elsewhere by PyTorch's operations. fp32 and bf16.
#pragma once

#include <ATen/ATen.h>

#include "model/config/layer_spec.h"

namespace keel::model {

// activation(x), x [T, F]; differentiable. Not of kSilu.
at::Tensor PlainUnit(const at::Tensor& x, Activation activation);
// For generation: in place, without gradients.
void PlainUnitInPlace(at::Tensor& x, Activation activation);

}  // namespace keel::model
