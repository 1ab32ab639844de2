// Activation recompute: keep a block's input instead of its activations, run it again in the
// backward (Chen et al. 2016).
#pragma once

#include <ATen/ATen.h>

#include <functional>

namespace keel::model {

// f(x), with the graph of f dropped. The backward runs f once more under grad mode; f must give the
// same values, and what it captures must outlive the graph. Parameters' gradients are added by f's
// own backward (see parallel::Parameter), once.
at::Tensor Recompute(const std::function<at::Tensor(const at::Tensor&)>& f, const at::Tensor& x);

}  // namespace keel::model
