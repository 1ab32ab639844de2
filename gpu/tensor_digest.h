// The body of TensorDigest, and how it is started.
#pragma once

#include "gpu/body.h"
#include "gpu/kernel_table.h"

namespace keel::gpu {

// As common/tensors/tensor_digest.h has them.
inline constexpr int64_t kDigestBlock = 2048;
KEEL_BODY uint64_t BlockWeight(uint64_t block) {
  uint64_t h = (block + 1) * 0x9E3779B97F4A7C15;
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EB;
  return (h ^ (h >> 31)) | 1;
}
KEEL_BODY uint64_t PlaceWeight(uint32_t place) {
  uint32_t h = place + 1;
  h = (h ^ (h >> 16)) * 0x7FEB352D;
  h = (h ^ (h >> 15)) * 0x846CA68B;
  return (h ^ (h >> 16)) | 1;
}
KEEL_BODY uint64_t WeightInBlock(int64_t element_size, int64_t place) {
  const int64_t in_word = element_size < 4 ? 4 / element_size : 1;
  return static_cast<uint64_t>(PlaceWeight(static_cast<uint32_t>(place / in_word)))
         << (place % in_word * element_size * 8);
}

// A team for each part.
template <typename Bits>
struct TensorDigestBody {
  static constexpr int kLanes = 256;
  TensorDigest a;

  template <class Team>
  KEEL_BODY void operator()(const Team& team, int64_t part) const {
    const int64_t first = part * kDigestPart;
    const Bits* data = static_cast<const Bits*>(a.data);
    const uint64_t sum =
        team.Sum(Least(kDigestPart, a.rows * a.columns - first), [&](int64_t i) -> uint64_t {
          const int64_t row = (first + i) / a.columns;
          const int64_t column = first + i - row * a.columns;
          const int64_t index = a.index + row * a.index_stride + column;
          return (static_cast<uint64_t>(data[row * a.stride + column]) + 1) *
                 WeightInBlock(sizeof(Bits), index % kDigestBlock) *
                 BlockWeight(static_cast<uint64_t>(index / kDigestBlock));
        });
    team.For(1, [&](int64_t) { a.parts[part] = static_cast<int64_t>(sum); });
  }
};

template <class Launcher>
void StartTensorDigest(const TensorDigest& a, Stream stream) {
  const auto run = [&]<typename Bits>(Bits) {
    Launcher::Run(TensorDigestBody<Bits>{a}, DigestParts(a.rows * a.columns), 0, stream);
  };
  switch (a.element_size) {
    case 1:
      return run(uint8_t{});
    case 2:
      return run(uint16_t{});
    case 4:
      return run(uint32_t{});
    default:
      return run(uint64_t{});
  }
}

template <class Launcher>
void AddTensorDigestTo(KernelTable& table) {
  table.tensor_digest = StartTensorDigest<Launcher>;
}

}  // namespace keel::gpu
