// What Keel's own kernels see of a tensor in host memory.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>

namespace keel::parallel {

// f(float{}) for fp32, f(uint16_t{}) for bf16.
template <typename F>
void WithHostType(const at::Tensor& tensor, F&& f) {
  if (tensor.scalar_type() == at::kFloat) {
    f(float{});
  } else {
    TORCH_CHECK(tensor.scalar_type() == at::kBFloat16, "expected float32 or bfloat16, found ",
                tensor.scalar_type());
    f(uint16_t{});
  }
}

template <typename T>
T* HostData(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

// Rows of work below which a second thread costs more than it gives.
inline int64_t RowGrain(int64_t row_elements) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, row_elements));
}

}  // namespace keel::parallel
