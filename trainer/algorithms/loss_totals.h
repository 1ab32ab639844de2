// LossTotals: what a loss counts of its micro-batches, summed on their device.
//
// A host that read them of each micro-batch would wait for its forward before it could give the
// device the next one. So they stay there, and are read once, when all are done.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace keel::trainer::rl {

template <size_t N>
class LossTotals {
 public:
  LossTotals() = default;
  // values [N] fp64.
  explicit LossTotals(at::Tensor values) : values_(std::move(values)) {}

  LossTotals& operator+=(const LossTotals& other) {
    values_ = values_.defined() ? values_ + other.values_ : other.values_;
    return *this;
  }
  // [N] fp64 on `device`; zeros where nothing was added. A copy, in which a caller may sum over
  // ranks in place: totals that were made of one micro-batch's share its memory.
  at::Tensor On(at::Device device) const {
    const auto options = at::TensorOptions(device).dtype(at::kDouble);
    return values_.defined() ? values_.to(options, /*non_blocking=*/false, /*copy=*/true)
                             : at::zeros({static_cast<int64_t>(N)}, options);
  }
  // Waits for the device.
  std::array<double, N> Read() const {
    const at::Tensor host = On(at::kCPU);
    std::array<double, N> read{};
    std::copy_n(host.const_data_ptr<double>(), N, read.begin());
    return read;
  }

 private:
  at::Tensor values_;
};

}  // namespace keel::trainer::rl
