#include "common/tensors/tensor_digest.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <type_traits>

#include "common/hash.h"
#include "common/tensors/packed_box.h"

namespace keel {

namespace {

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define KEEL_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define KEEL_CLONES
#endif

// The weights within a block, and the sum of those before each: of 8 and 16 KB, for the nearest
// cache.
struct BlockWeights {
  std::array<uint32_t, kDigestBlock> weight;
  std::array<uint64_t, kDigestBlock + 1> before;
};
constexpr BlockWeights MakeBlockWeights() {
  BlockWeights made{};
  uint64_t before = 0;
  for (size_t i = 0; i < kDigestBlock; ++i) {
    made.weight[i] = PlaceWeight(static_cast<uint32_t>(i));
    made.before[i] = before;
    before += made.weight[i];
  }
  made.before[kDigestBlock] = before;
  return made;
}
constexpr BlockWeights kWeights = MakeBlockWeights();

// What stands in memory, at any address.
template <typename Bits>
struct [[gnu::packed, gnu::may_alias]] Stored {
  Bits bits;
};
template <typename Bits>
const Stored<Bits>* StoredAt(const std::byte* data) {
  return reinterpret_cast<const Stored<Bits>*>(data);
}

// Of words of 32 bits a product of halves, which every vector unit has.
template <typename Word>
[[gnu::always_inline]] inline uint64_t Dot(const Stored<Word>* data, const uint32_t* weights,
                                           int64_t n) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += uint64_t{data[i].bits} * weights[i];
  return sum;
}
KEEL_CLONES uint64_t DotOf(const Stored<uint32_t>* data, const uint32_t* weights, int64_t n) {
  return Dot(data, weights, n);
}
KEEL_CLONES uint64_t DotOf(const Stored<uint64_t>* data, const uint32_t* weights, int64_t n) {
  return Dot(data, weights, n);
}

// Of `n` neighbours from `place` of a block: sum (bits + 1) * weight = sum bits * weight + sum
// weight. Those of less than a word go by words, but for the ends that do not fill theirs.
template <typename Bits>
uint64_t SumInBlock(const std::byte* data, int64_t place, int64_t n) {
  constexpr int64_t kSize = sizeof(Bits);
  using Word = std::conditional_t<(kSize < 4), uint32_t, Bits>;
  constexpr int64_t kInWord = sizeof(Word) / kSize;
  // One in each element of a word.
  constexpr uint64_t kOnes = kInWord == 1 ? 1 : uint32_t(-1) / Bits(-1);
  uint64_t sum = 0;
  const auto single = [&] {
    sum += (uint64_t{StoredAt<Bits>(data)->bits} + 1) * WeightInBlock(kSize, place);
    data += kSize;
    ++place;
    --n;
  };
  while (n > 0 && place % kInWord != 0) single();
  const int64_t words = n / kInWord;
  const size_t word = static_cast<size_t>(place / kInWord);
  sum += DotOf(StoredAt<Word>(data), &kWeights.weight[word], words) +
         kOnes * (kWeights.before[word + static_cast<size_t>(words)] - kWeights.before[word]);
  data += words * static_cast<int64_t>(sizeof(Word));
  place += words * kInWord;
  n -= words * kInWord;
  while (n > 0) single();
  return sum;
}

uint64_t SumInBlock(const std::byte* data, int64_t place, int64_t n, int64_t element_size) {
  switch (element_size) {
    case 1:
      return SumInBlock<uint8_t>(data, place, n);
    case 2:
      return SumInBlock<uint16_t>(data, place, n);
    case 4:
      return SumInBlock<uint32_t>(data, place, n);
    default:
      return SumInBlock<uint64_t>(data, place, n);
  }
}

// Of `n` neighbours, the first of which is element `index` of the tensor.
uint64_t SumContiguous(const std::byte* data, int64_t n, int64_t index, int64_t element_size) {
  uint64_t sum = 0;
  while (n > 0) {
    const int64_t place = index % kDigestBlock;
    const int64_t count = std::min(n, kDigestBlock - place);
    sum += BlockWeight(static_cast<uint64_t>(index / kDigestBlock)) *
           SumInBlock(data, place, count, element_size);
    data += count * element_size;
    index += count;
    n -= count;
  }
  return sum;
}

// Of a box whose last dim's elements are no neighbours: of copies of some of them at a time.
uint64_t PackedDigest(const Dims& shape, DType dtype, const Box& box, const Box& view_box,
                      const StridedView& view) {
  constexpr int64_t kAtOnce = 64 << 10;  // bytes
  uint64_t sum = 0;
  const auto add = [&](const Box& part, std::span<const std::byte> bytes) {
    // Of this thread's copy, which is only read.
    const StridedView there = {const_cast<std::byte*>(bytes.data()), ContiguousStrides(part.size)};
    sum += BoxDigest(shape, dtype, part, part, there);
    return Status::Ok();
  };
  ThrowIfError(ForEachPacked(box, view_box, view, DTypeSize(dtype), kAtOnce, add));
  return sum;
}

}  // namespace

uint64_t BoxDigest(const Dims& shape, DType dtype, const Box& box, const Box& view_box,
                   const StridedView& view) {
  if (box.empty()) return 0;
  const auto element_size = static_cast<int64_t>(DTypeSize(dtype));
  const int dims = shape.size();
  if (dims == 0) return SumContiguous(view.data, 1, 0, element_size);
  const Dims strides = ContiguousStrides(shape);
  const int last = dims - 1;
  if (view.strides[last] != 1 && box.size[last] > 1)
    return PackedDigest(shape, dtype, box, view_box, view);
  // The last dim is a run.
  const int64_t run = box.size[last];
  Dims at = Dims::Filled(dims, 0);
  uint64_t sum = 0;
  while (true) {
    int64_t index = 0;
    int64_t place = 0;
    for (int d = 0; d < dims; ++d) {
      index += (box.offset[d] + at[d]) * strides[d];
      place += (box.offset[d] - view_box.offset[d] + at[d]) * view.strides[d];
    }
    sum += SumContiguous(view.data + place * element_size, run, index, element_size);
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
