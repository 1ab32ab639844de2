#include "trainer/engine/copy_order.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace keel::trainer {
namespace {

TEST(CopyOrderTest, ArraysOfOneSizeTakeTurns) {
  const std::vector<int64_t> sizes = {3 * 8192, 3 * 8192};
  const std::vector<CopyPiece> order = CopyOrder(sizes, 8192);
  ASSERT_EQ(order.size(), 6u);
  for (size_t i = 0; i < order.size(); ++i) {
    EXPECT_EQ(order[i].array, i % 2);
    EXPECT_EQ(order[i].at, static_cast<int64_t>(i / 2) * 8192);
    EXPECT_EQ(order[i].bytes, 8192);
  }
}

TEST(CopyOrderTest, WhatFitsIsOnePieceAndNothingIsNone) {
  const std::vector<CopyPiece> order = CopyOrder(std::vector<int64_t>{100, 0, 5000}, 8192);
  ASSERT_EQ(order.size(), 2u);
  EXPECT_EQ(order[0].bytes, 100);
  EXPECT_EQ(order[1].array, 2u);
  EXPECT_EQ(order[1].bytes, 5000);
  EXPECT_TRUE(CopyOrder({}, 8192).empty());
}

// Every byte once, none larger than asked for, and whatever share of one array has been copied, the
// others are at most a piece behind.
TEST(CopyOrderTest, RandomArraysAreCoveredSideBySide) {
  std::mt19937 chance(5);
  for (int i = 0; i < 300; ++i) {
    std::vector<int64_t> sizes(1 + chance() % 5);
    for (int64_t& size : sizes) size = chance() % 3 == 0 ? chance() % 9000 : chance() % 9000000;
    const int64_t most = 4096 * (1 + static_cast<int64_t>(chance() % 32));
    std::vector<int64_t> copied(sizes.size());
    for (const CopyPiece& piece : CopyOrder(sizes, most)) {
      ASSERT_EQ(piece.at, copied[piece.array]) << "in order within an array, without holes";
      ASSERT_GT(piece.bytes, 0);
      ASSERT_LE(piece.bytes, most);
      copied[piece.array] += piece.bytes;
      for (size_t a = 0; a < sizes.size(); ++a) {
        if (sizes[a] < 50 * most || sizes[piece.array] < 50 * most) continue;  // pages are small
        const auto share = [&](size_t array) {
          return static_cast<double>(copied[array]) / static_cast<double>(sizes[array]);
        };
        ASSERT_GE(share(a) + 0.05, share(piece.array));
      }
    }
    ASSERT_EQ(copied, sizes);
  }
}

}  // namespace
}  // namespace keel::trainer
