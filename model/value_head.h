// A critic's head: one number per token, in fp32 whatever the model's dtype.
#pragma once

#include <ATen/ATen.h>

#include "parallel/parameter.h"

namespace keel::model {

// hidden [T, n] and weight [1, n] of one dtype -> [T] fp32. Adds to the weight's gradient in the
// backward. Not collective.
at::Tensor ValueHead(const at::Tensor& hidden, parallel::Parameter& weight);

}  // namespace keel::model
