// A tensor times a number.
#pragma once

#include <ATen/ATen.h>

namespace keel::parallel {

// x *= factor, rounded once, as at::mul has it. (at::Tensor::mul_ rounds the factor to x's dtype
// first: of bf16 to 8 bits.)
inline void ScaleInPlace(at::Tensor& x, double factor) {
  at::mul_out(x, x, at::scalar_tensor(factor, at::kDouble));
}

}  // namespace keel::parallel
