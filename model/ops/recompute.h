// Activation recompute: keep a block's input instead of its activations, run it again in the
// backward (Chen et al. 2016).
#pragma once

#include <ATen/ATen.h>

#include <functional>

namespace keel::model {

// What f takes and gives: the stream, and what runs beside it, if anything does.
struct Recomputed {
  at::Tensor x;
  at::Tensor beside;  // undefined: nothing, of f's result then, too
};

// f(in), with the graph of f dropped. The backward runs f once more under grad mode; f must give
// the same values, and what it captures must outlive the graph. Parameters' gradients are added by
// f's own backward (see parallel::Parameter), once.
Recomputed Recompute(const std::function<Recomputed(const Recomputed&)>& f, const Recomputed& in);

}  // namespace keel::model
