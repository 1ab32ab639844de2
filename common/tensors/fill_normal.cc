#include "common/tensors/fill_normal.h"

#include <algorithm>
#include <bit>

namespace keel {

namespace {

uint16_t RoundToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace

void FillNormal(const Philox& rng, const Dims& shape, const Box& box, const StridedView& view,
                DType dtype, double mean, double stddev) {
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    throw Error(StatusCode::kInternal,
                "FillNormal: F32 or BF16 expected, found " + std::string(DTypeName(dtype)));
  }
  if (box.empty()) return;
  const Dims global = ContiguousStrides(shape);
  const int dims = box.dims();
  const int64_t run = dims == 0 ? 1 : box.size[dims - 1];
  const int64_t element = DTypeSize(dtype);
  const int64_t step = dims == 0 ? 1 : view.strides[dims - 1];
  const auto m = static_cast<float>(mean);
  const auto s = static_cast<float>(stddev);
  Dims at = Dims::Filled(std::max(0, dims - 1), 0);
  while (true) {
    uint64_t index = dims == 0 ? 0 : static_cast<uint64_t>(box.offset[dims - 1]);
    std::byte* to = view.data;
    for (int d = 0; d < dims - 1; ++d) {
      index += static_cast<uint64_t>((box.offset[d] + at[d]) * global[d]);
      to += at[d] * view.strides[d] * element;
    }
    std::array<float, 4> block{};
    for (int64_t i = 0; i < run; ++i, ++index) {
      if (i == 0 || index % 4 == 0) block = rng.NormalBlock(index / 4);
      const float value = m + s * block[index % 4];
      if (dtype == DType::kF32) {
        reinterpret_cast<float*>(to)[i * step] = value;
      } else {
        reinterpret_cast<uint16_t*>(to)[i * step] = RoundToBf16(value);
      }
    }
    int d = dims - 2;
    for (; d >= 0; --d) {
      if (++at[d] < box.size[d]) break;
      at[d] = 0;
    }
    if (d < 0) return;
  }
}

}  // namespace keel
