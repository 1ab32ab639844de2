// Composed: an operation that is made of PyTorch's own, as one of the decoder's.
//
// Nothing of its inside is kept for the backward, which runs it again. So parameters take their
// gradients whatever the gradient is asked by (recompute.h asks by a block's input alone).
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "parallel/parameter.h"

namespace keel::model {

// f(inputs, of which there are up to three, and values of the parameters in fp32), which must be
// differentiable by all of them and a function of them alone.
using Composition = std::function<at::Tensor(const std::vector<at::Tensor>& inputs,
                                             const std::vector<at::Tensor>& values)>;
at::Tensor Composed(const Composition& f, const std::vector<at::Tensor>& inputs,
                    const std::vector<parallel::Parameter*>& parameters);

}  // namespace keel::model
