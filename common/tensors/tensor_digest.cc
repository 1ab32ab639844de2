#include "common/tensors/tensor_digest.h"

#include <cstddef>
#include <span>

#include "common/hash.h"

namespace keel {

namespace {

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define KEEL_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define KEEL_CLONES
#endif

// Odd constants of the splitmix64 and xxHash families.
constexpr uint64_t kIndex = 0x9E3779B97F4A7C15;
constexpr uint64_t kBits = 0xC2B2AE3D27D4EB4F;
constexpr uint64_t kMix = 0xBF58476D1CE4E5B9;

// (bits + 1) * kBits. No processor before AVX-512 multiplies vectors of 64-bit words: of what has
// 32 bits or fewer, products of halves are enough.
template <typename T>
[[gnu::always_inline]] inline uint64_t MixBits(T bits) {
  if constexpr (sizeof(T) > 4) return (bits + 1) * kBits;
  const auto narrow = static_cast<uint32_t>(bits);
  const uint64_t low = uint64_t{narrow} * static_cast<uint32_t>(kBits);
  const uint64_t high = narrow * static_cast<uint32_t>(kBits >> 32);
  return low + (high << 32) + kBits;
}

template <typename T>
[[gnu::always_inline]] inline uint64_t SumRun(const T* data, int64_t n, uint64_t index) {
  uint64_t sum = 0;
  uint64_t place = index * kIndex;
  for (int64_t i = 0; i < n; ++i) {
    uint64_t h = place ^ MixBits(data[i]);
    place += kIndex;
    h ^= h >> 29;
    h *= kMix;
    h ^= h >> 32;
    sum += h;
  }
  return sum;
}

KEEL_CLONES uint64_t Sum8(const uint8_t* data, int64_t n, uint64_t index) {
  return SumRun(data, n, index);
}
KEEL_CLONES uint64_t Sum16(const uint16_t* data, int64_t n, uint64_t index) {
  return SumRun(data, n, index);
}
KEEL_CLONES uint64_t Sum32(const uint32_t* data, int64_t n, uint64_t index) {
  return SumRun(data, n, index);
}
KEEL_CLONES uint64_t Sum64(const uint64_t* data, int64_t n, uint64_t index) {
  return SumRun(data, n, index);
}

uint64_t SumContiguous(const std::byte* data, int64_t n, uint64_t index, int64_t element_size) {
  switch (element_size) {
    case 1:
      return Sum8(reinterpret_cast<const uint8_t*>(data), n, index);
    case 2:
      return Sum16(reinterpret_cast<const uint16_t*>(data), n, index);
    case 4:
      return Sum32(reinterpret_cast<const uint32_t*>(data), n, index);
    default:
      return Sum64(reinterpret_cast<const uint64_t*>(data), n, index);
  }
}

}  // namespace

uint64_t BoxDigest(const Dims& shape, DType dtype, const Box& box, const Box& view_box,
                   const StridedView& view) {
  if (box.empty()) return 0;
  const auto element_size = static_cast<int64_t>(DTypeSize(dtype));
  const int dims = shape.size();
  if (dims == 0) return SumContiguous(view.data, 1, 0, element_size);
  const Dims strides = ContiguousStrides(shape);
  // The last dim is a run when its elements are neighbours; else element by element.
  const int last = dims - 1;
  const int64_t run = view.strides[last] == 1 ? box.size[last] : 1;
  Dims at = Dims::Filled(dims, 0);
  uint64_t sum = 0;
  while (true) {
    int64_t index = 0;
    int64_t place = 0;
    for (int d = 0; d < dims; ++d) {
      index += (box.offset[d] + at[d]) * strides[d];
      place += (box.offset[d] - view_box.offset[d] + at[d]) * view.strides[d];
    }
    sum += SumContiguous(view.data + place * element_size, run, static_cast<uint64_t>(index),
                         element_size);
    // The next run in row-major order.
    int d = last;
    at[d] += run;
    while (at[d] >= box.size[d]) {
      at[d] = 0;
      if (d == 0) return sum;
      ++at[--d];
    }
  }
}

uint64_t DigestWeight(std::string_view name) {
  return Hash128(std::as_bytes(std::span(name))).low | 1;
}

}  // namespace keel
