// A gate on what a layer gives, as Qwen3-Next's attention has it.
#pragma once

#include <ATen/ATen.h>

namespace keel::model {

// x * sigmoid(gates), in x's dtype; differentiable. x [T, n] contiguous; gates [T, n], whose rows
// may stand apart. On CPU an element's bits are its own, whatever stands beside it.
at::Tensor SigmoidGate(const at::Tensor& x, const at::Tensor& gates);

}  // namespace keel::model
