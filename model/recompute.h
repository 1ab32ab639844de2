// Activation recompute: keep a block's input instead of its activations, run it again in the
// backward (Chen et al. 2016).
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

namespace keel::model {

// f(x), with the graph of f dropped: of as many tensors as f takes and gives, the first of which f
// must be differentiable by. The backward runs f once more under grad mode; f must give the same
// values, and what it captures must outlive the graph. Parameters' gradients are added by f's own
// backward (see parallel::Parameter), once.
using TensorList = std::vector<at::Tensor>;
TensorList Recompute(const std::function<TensorList(const TensorList&)>& f, const TensorList& x);

}  // namespace keel::model
