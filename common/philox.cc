#include "common/philox.h"

#include <cmath>
#include <numbers>

namespace keel {

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(a)};
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return c;
}

std::array<uint32_t, 4> Philox::Block(uint64_t index) const {
  return Philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                     static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)},
                    {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
}

uint64_t Philox::Bits64(uint64_t index) const {
  const auto block = Block(index);
  return uint64_t{block[1]} << 32 | block[0];
}

double Philox::Uniform(uint64_t index) const {
  return static_cast<double>(Bits64(index) >> 11) * 0x1p-53;
}

uint64_t Philox::Below(uint64_t index, uint64_t bound) const {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(Bits64(index)) * bound) >> 64);
}

namespace {

// Two normals from two words (Box-Muller). u in (0, 1], so that the logarithm is finite.
std::array<float, 2> BoxMuller(uint32_t a, uint32_t b) {
  const float u = (static_cast<float>(a >> 8) + 1.0f) * 0x1p-24f;
  const float angle = static_cast<float>(b >> 8) * (2.0f * std::numbers::pi_v<float> * 0x1p-24f);
  const float radius = std::sqrt(-2.0f * std::log(u));
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace

std::array<float, 4> Philox::NormalBlock(uint64_t index) const {
  const auto words = Block(index);
  const auto low = BoxMuller(words[0], words[1]);
  const auto high = BoxMuller(words[2], words[3]);
  return {low[0], low[1], high[0], high[1]};
}

double Philox::Normal(uint64_t index) const {
  return static_cast<double>(NormalBlock(index / 4)[index % 4]);
}

}  // namespace keel
