// Philox4x32-10, a counter-based generator (Salmon et al., SC'11).
//
// A draw is a pure function of (seed, stream, counter): randomness needs no state, is the same
// under every parallel layout, and a saved generator is a few numbers.
#pragma once

#include <array>
#include <cstdint>

namespace keel {

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// A named stream of draws. `stream` separates uses (shuffle, init of tensor x, sampling, ...).
class Philox {
 public:
  Philox(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}
  std::array<uint32_t, 4> Block(uint64_t index) const;  // the index-th four words
  uint64_t Bits64(uint64_t index) const;                // uniform 64 bits
  double Uniform(uint64_t index) const;                 // [0, 1), 53 bits
  // Uniform in [0, bound) without bias worth measuring (128-bit multiply). bound > 0.
  uint64_t Below(uint64_t index, uint64_t bound) const;
  double Normal(uint64_t index) const;                     // Box-Muller
  std::array<float, 4> NormalBlock(uint64_t index) const;  // the normals 4 index to 4 index + 3

 private:
  uint64_t seed_;
  uint64_t stream_;
};

}  // namespace keel
