#include "common/compress.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace keel {
namespace {

constexpr size_t kLimit = size_t{1} << 20;

TEST(Compress, GivesBackWhatWentIn) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 3000; ++round) {
    // Of few letters there is much to copy, of many nothing.
    const uint64_t letters = 1 + random() % (round % 3 == 0 ? 256 : 3);
    std::string bytes(random() % 700, '\0');
    for (char& c : bytes) c = static_cast<char>(random() % letters);
    EXPECT_EQ(ValueOrThrow(Decompress(Compress(bytes), kLimit)), bytes);
  }
}

TEST(Compress, WhatIsSaidAgainTakesNextToNothing) {
  std::string names;
  for (int i = 0; i < 100; ++i) names += "model.layers.7.mlp.down_proj.weight";
  EXPECT_LT(Compress(names).size(), 60u);
}

TEST(Compress, DamageIsRefusedOrOfTheSameSizeAndNeverPastTheLimit) {
  const std::string bytes = "one two three two three one two three " + std::string(200, 'x');
  const std::string packed = Compress(bytes);
  for (size_t size = 0; size < packed.size(); ++size)
    EXPECT_EQ(Decompress(packed.substr(0, size), kLimit).status().code(), StatusCode::kInvalidData);
  EXPECT_FALSE(Decompress(packed + "x", kLimit).ok());
  EXPECT_FALSE(Decompress(packed, bytes.size() - 1).ok());
  std::mt19937_64 random(4);
  for (int round = 0; round < 20'000; ++round) {
    std::string damaged = packed;
    for (int i = 0; i < 2; ++i) damaged[random() % damaged.size()] = static_cast<char>(random());
    const auto out = Decompress(damaged, kLimit);
    if (out.ok()) {
      EXPECT_LE(out->size(), kLimit);
    }
  }
}

}  // namespace
}  // namespace keel
