// RMS norm over vectors, and its gradient.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/element.h"

namespace keel::gpu {

// `rows` x `groups` vectors of n: group g of row r stands g * n behind r * stride.
struct Vectors {
  int64_t rows = 0;
  int64_t groups = 1;
  int64_t n = 0;
  int64_t stride = 0;  // elements; n where a row is one vector
  int64_t count() const { return rows * groups; }
};

// out = x / rms(x) * (offset + weight), eps added to the mean of squares; out may be x. With `add`
// the norm is that of x + add, rounded to the element, which goes to `sum`; sum may be x. All of
// them are laid out alike. rstd [rows, groups] receives 1 / rms, or is null.
struct RmsNorm {
  Element element = Element::kF32;
  Vectors vectors;
  const void* x = nullptr;
  const void* add = nullptr;
  void* sum = nullptr;
  const void* weight = nullptr;  // [n]
  float eps = 0;
  float offset = 0;
  void* out = nullptr;
  float* rstd = nullptr;
};

// dx, laid out as dy and x; dx may be dy. With `dsum`, the gradient of the sum that was normalised,
// that is added to dx. weight_gradient [n] is added to: the vectors are dealt to
// WeightGradientParts in their order, each sums its own, and these are summed in their order.
struct RmsNormBackward {
  Element element = Element::kF32;
  Vectors vectors;
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* dsum = nullptr;
  const void* weight = nullptr;
  float offset = 0;
  const float* rstd = nullptr;
  void* dx = nullptr;
  float* weight_gradient = nullptr;
  float* scratch = nullptr;  // [WeightGradientParts, n], of any content
};

// Fixed by the shape alone, so that sums do not depend on the device.
inline int64_t WeightGradientParts(const Vectors& vectors) {
  return std::min<int64_t>(vectors.count(), vectors.n <= 512 ? 2048 : 512);
}

}  // namespace keel::gpu
