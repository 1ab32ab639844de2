// Carries plain C++ values through a torch::autograd::Function's context, whose slots hold only
// tensors and scalars.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <string>
#include <utility>

namespace keel::parallel {

template <typename T>
struct CaptureHolder : torch::CustomClassHolder {
  explicit CaptureHolder(T v) : value(std::move(v)) {}
  T value;
};

template <typename T>
void Capture(torch::autograd::AutogradContext* context, const std::string& key, T value) {
  context->saved_data[key] =
      at::IValue::make_capsule(c10::make_intrusive<CaptureHolder<T>>(std::move(value)));
}

template <typename T>
T& Captured(torch::autograd::AutogradContext* context, const std::string& key) {
  return static_cast<CaptureHolder<T>*>(context->saved_data[key].toCapsule().get())->value;
}

}  // namespace keel::parallel
