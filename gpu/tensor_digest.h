// The body of TensorDigest, and how it is started.
#pragma once

#include "gpu/body.h"
#include "gpu/kernel_table.h"

namespace keel::gpu {

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
          uint64_t h =
              (static_cast<uint64_t>(index) * 0x9E3779B97F4A7C15) ^
              ((static_cast<uint64_t>(data[row * a.stride + column]) + 1) * 0xC2B2AE3D27D4EB4F);
          h ^= h >> 29;
          h *= 0xBF58476D1CE4E5B9;
          return h ^ (h >> 32);
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
