// What the tests of operations draw: numbers that depend on a seed alone, and a vector that learns.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "parallel/parameter.h"

namespace keel::model {

inline at::Tensor Draw(uint64_t seed, at::IntArrayRef shape) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(seed);
  return at::randn(shape, generator);
}

inline parallel::Parameter Holding(const at::Tensor& values) {
  parallel::Parameter p;
  p.shape = {values.size(0)};
  p.value = values.clone().requires_grad_();
  // Of earlier micro-batches, which are added to.
  p.gradient = at::ones(values.sizes(), at::kFloat);
  return p;
}

}  // namespace keel::model
