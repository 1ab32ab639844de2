#include "model/gguf/dequantize.h"

#include <fmt/format.h>

#include <cstring>

#include "common/status.h"
#include "common/tensors/float_convert.h"

namespace keel::model {

namespace {

// Blocks of 32: a scale (and a least value) in half precision, then the numbers. Of 4 bits, the
// first 16 are the low halves of the bytes, the last 16 the high ones; a fifth bit of number i is
// bit i of a word. Blocks of 256 (K): eight or sixteen sub-blocks with scales of their own, which
// are small integers times the block's. The order of the products and sums is that of gguf-py:
// another would round otherwise.
constexpr int kSmall = 32;
constexpr int kLarge = 256;

float Half(const uint8_t* at) {
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  return Float16ToFloat(bits);
}

// Numbers of four bits or five, less `zero`.
template <bool kFifthBit>
void Nibbles(const uint8_t* bytes, uint32_t fifth, int zero, int* numbers) {
  for (int i = 0; i < kSmall / 2; ++i) {
    const int low = bytes[i] & 0xf;
    const int high = bytes[i] >> 4;
    const int low_bit = kFifthBit ? static_cast<int>((fifth >> i) & 1u) << 4 : 0;
    const int high_bit = kFifthBit ? static_cast<int>((fifth >> (i + 16)) & 1u) << 4 : 0;
    numbers[i] = (low | low_bit) - zero;
    numbers[i + kSmall / 2] = (high | high_bit) - zero;
  }
}

uint32_t Word(const uint8_t* at) {
  uint32_t word = 0;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

// One block; `kFifthBit` and `kLeast` say which of Q4_0, Q4_1, Q5_0 and Q5_1.
template <bool kFifthBit, bool kLeast>
void SmallBlock(const uint8_t* block, float* values) {
  const float scale = Half(block);
  const float least = kLeast ? Half(block + 2) : 0;
  const uint8_t* rest = block + (kLeast ? 4 : 2);
  const uint32_t fifth = kFifthBit ? Word(rest) : 0;
  int numbers[kSmall];
  Nibbles<kFifthBit>(rest + (kFifthBit ? 4 : 0), fifth, kLeast ? 0 : (kFifthBit ? 16 : 8), numbers);
  for (int i = 0; i < kSmall; ++i) {
    const float product = scale * static_cast<float>(numbers[i]);
    values[i] = kLeast ? product + least : product;
  }
}

void BlockQ8_0(const uint8_t* block, float* values) {
  const float scale = Half(block);
  for (int i = 0; i < kSmall; ++i)
    values[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * scale;
}

// The eight scales and least values of six bits in 12 bytes: of the first four the low six bits of
// bytes 0-3 and 4-7, of the last four the halves of bytes 8-11 with the two bits left above.
struct SubScale {
  float scale, least;
};
SubScale SubScaleOf(const uint8_t* bytes, int i) {
  if (i < 4) return {static_cast<float>(bytes[i] & 63), static_cast<float>(bytes[i + 4] & 63)};
  const int low = bytes[i + 4];
  return {static_cast<float>((low & 0xf) | ((bytes[i - 4] >> 6) << 4)),
          static_cast<float>((low >> 4) | ((bytes[i] >> 6) << 4))};
}

// Q4_K and Q5_K: sub-blocks of 32, two of which share 32 bytes; bit i of qh[l] is the fifth of
// number l of sub-block i.
template <bool kFifthBit>
void LargeBlock(const uint8_t* block, float* values) {
  const float scale = Half(block);
  const float least = Half(block + 2);
  const uint8_t* high = block + 16;
  const uint8_t* low = high + (kFifthBit ? 32 : 0);
  for (int i = 0; i < 8; ++i) {
    const SubScale sub = SubScaleOf(block + 4, i);
    const float d = scale * sub.scale;
    const float m = least * sub.least;
    for (int l = 0; l < kSmall; ++l) {
      const uint8_t byte = low[(i / 2) * kSmall + l];
      int number = i % 2 == 0 ? byte & 0xf : byte >> 4;
      if (kFifthBit) number |= ((high[l] >> i) & 1) << 4;
      values[i * kSmall + l] = d * static_cast<float>(number) - m;
    }
  }
}

// Six bits: four low ones in `low`, two high ones in `high`, each half of the block by itself; a
// signed scale every 16.
void BlockQ6_K(const uint8_t* block, float* values) {
  const uint8_t* low = block;
  const uint8_t* high = block + 128;
  const uint8_t* scales = block + 192;
  const float scale = Half(block + 208);
  for (int i = 0; i < kLarge; ++i) {
    const int half = i / 128;
    const int quarter = (i % 128) / 32;
    const int l = i % 32;
    const int byte = low[half * 64 + (quarter % 2) * 32 + l];
    const int four = quarter < 2 ? byte & 0xf : byte >> 4;
    const int two = (high[half * 32 + l] >> (2 * quarter)) & 3;
    const float d = scale * static_cast<float>(static_cast<int8_t>(scales[i / 16]));
    values[i] = d * static_cast<float>((four | (two << 4)) - 32);
  }
}

template <typename Block>
void EachBlock(std::span<const std::byte> blocks, GgmlBlock size, float* values,
               const Block& block) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(blocks.data());
  const int64_t count = std::ssize(blocks) / size.bytes;
  for (int64_t i = 0; i < count; ++i) block(bytes + i * size.bytes, values + i * size.values);
}

}  // namespace

void Dequantize(GgmlType type, std::span<const std::byte> blocks, std::span<float> values) {
  const GgmlBlock size = BlockOf(type);
  if (std::ssize(blocks) % size.bytes != 0 ||
      std::ssize(blocks) / size.bytes * size.values != std::ssize(values)) {
    throw Error(StatusCode::kInternal,
                fmt::format("Dequantize: {} bytes of {} for {} values", blocks.size(),
                            GgmlTypeName(type), values.size()));
  }
  float* out = values.data();
  switch (type) {
    case GgmlType::kF32:
      if (!values.empty()) std::memcpy(out, blocks.data(), blocks.size());
      return;
    case GgmlType::kF16:
      return EachBlock(blocks, size, out, [](const uint8_t* in, float* to) { *to = Half(in); });
    case GgmlType::kBF16:
      return EachBlock(blocks, size, out, [](const uint8_t* in, float* to) {
        uint16_t bits = 0;
        std::memcpy(&bits, in, sizeof(bits));
        *to = BFloat16ToFloat(bits);
      });
    case GgmlType::kQ4_0:
      return EachBlock(blocks, size, out, SmallBlock<false, false>);
    case GgmlType::kQ4_1:
      return EachBlock(blocks, size, out, SmallBlock<false, true>);
    case GgmlType::kQ5_0:
      return EachBlock(blocks, size, out, SmallBlock<true, false>);
    case GgmlType::kQ5_1:
      return EachBlock(blocks, size, out, SmallBlock<true, true>);
    case GgmlType::kQ8_0:
      return EachBlock(blocks, size, out, BlockQ8_0);
    case GgmlType::kQ4_K:
      return EachBlock(blocks, size, out, LargeBlock<false>);
    case GgmlType::kQ5_K:
      return EachBlock(blocks, size, out, LargeBlock<true>);
    case GgmlType::kQ6_K:
      return EachBlock(blocks, size, out, BlockQ6_K);
  }
}

}  // namespace keel::model
