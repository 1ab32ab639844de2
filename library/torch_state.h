// at::Tensor as StateTensor. Public, of headers alone: for programs that link libtorch.
//
// The tensors must stay alive as long as the memory of a StateTensor must (state_checkpointer.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "library/state.h"

namespace keel::library {

// Throws Error(kInvalidData): a dtype that safetensors does not have here.
inline DType DTypeOf(const std::string& name, const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kBool:
      return DType::kBool;
    case at::kByte:
      return DType::kU8;
    case at::kChar:
      return DType::kI8;
    case at::kShort:
      return DType::kI16;
    case at::kUInt16:
      return DType::kU16;
    case at::kHalf:
      return DType::kF16;
    case at::kBFloat16:
      return DType::kBF16;
    case at::kInt:
      return DType::kI32;
    case at::kUInt32:
      return DType::kU32;
    case at::kFloat:
      return DType::kF32;
    case at::kDouble:
      return DType::kF64;
    case at::kLong:
      return DType::kI64;
    case at::kUInt64:
      return DType::kU64;
    default:
      throw Error(StatusCode::kInvalidData,
                  "the tensor '" + name + "' is of dtype " + c10::toString(tensor.scalar_type()) +
                      ", which is not saved: give a view of it as integers or floats");
  }
}

// A dense tensor of the host, as a whole. Throws Error(kInvalidData) for any other.
inline StateTensor OfTensor(std::string name, const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.device().is_cpu())
    throw Error(StatusCode::kInvalidData,
                "the tensor '" + name + "' is not a dense one in host memory: save a copy there");
  StateTensor out;
  out.dtype = DTypeOf(name, tensor);
  out.shape = Dims(std::span<const int64_t>(tensor.sizes().data(), tensor.sizes().size()));
  out.strides = Dims(std::span<const int64_t>(tensor.strides().data(), tensor.strides().size()));
  out.data = const_cast<void*>(tensor.const_data_ptr());
  out.name = std::move(name);
  return out;
}

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

inline std::vector<StateTensor> OfTensors(const NamedTensors& tensors) {
  std::vector<StateTensor> state;
  state.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) state.push_back(OfTensor(name, tensor));
  return state;
}

}  // namespace keel::library
