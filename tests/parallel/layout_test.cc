#include "parallel/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace keel::parallel {
namespace {

TEST(LayoutTest, CoordinatesAndRanksAreInverse) {
  for (int tp : {1, 2, 4}) {
    for (int pp : {1, 2, 3}) {
      for (int dp : {1, 2, 5}) {
        const Layout layout = ValueOrThrow(Layout::Make(tp * pp * dp, tp, pp));
        EXPECT_EQ(layout.dp(), dp);
        for (int rank = 0; rank < layout.world(); ++rank) {
          EXPECT_EQ(rank,
                    layout.RankOf(layout.CoordOf(rank, Axis::kTp), layout.CoordOf(rank, Axis::kDp),
                                  layout.CoordOf(rank, Axis::kPp)));
          for (Axis axis : {Axis::kTp, Axis::kDp, Axis::kPp}) {
            const std::vector<int> group = layout.GroupRanks(rank, axis);
            ASSERT_EQ(static_cast<int>(group.size()), layout.degree(axis));
            EXPECT_EQ(group[static_cast<size_t>(layout.CoordOf(rank, axis))], rank);
            for (int peer : group) EXPECT_EQ(layout.GroupRanks(peer, axis), group);
          }
        }
        for (Axis axis : {Axis::kTp, Axis::kDp, Axis::kPp}) {
          std::set<int> seen;
          for (const auto& group : layout.Groups(axis)) seen.insert(group.begin(), group.end());
          EXPECT_EQ(static_cast<int>(seen.size()), layout.world());
        }
      }
    }
  }
}

TEST(LayoutTest, TensorParallelPeersAreNeighbours) {
  const Layout layout = ValueOrThrow(Layout::Make(8, 2, 2));
  EXPECT_EQ(layout.GroupRanks(5, Axis::kTp), (std::vector<int>{4, 5}));
  EXPECT_EQ(layout.GroupRanks(5, Axis::kDp), (std::vector<int>{5, 7}));
  EXPECT_EQ(layout.GroupRanks(5, Axis::kPp), (std::vector<int>{1, 5}));
}

TEST(LayoutTest, AWrongWorldSizePrintsTheEquation) {
  const auto layout = Layout::Make(6, 2, 2);
  ASSERT_FALSE(layout.ok());
  EXPECT_EQ(layout.status().code(), StatusCode::kConfig);
  EXPECT_NE(layout.status().message().find("world size 6 != dp 1 x tp 2 x pp 2 = 4"),
            std::string::npos)
      << layout.status().message();
  EXPECT_FALSE(Layout::Make(4, 0, 1).ok());
}

TEST(LayoutTest, StagesShareLayersEvenly) {
  for (int layers = 1; layers <= 13; ++layers) {
    for (int stages = 1; stages <= layers; ++stages) {
      int next = 0, smallest = layers, largest = 0;
      for (int s = 0; s < stages; ++s) {
        const LayerRange range = LayersOfStage(layers, stages, s);
        EXPECT_EQ(range.begin, next);
        next = range.end;
        smallest = std::min(smallest, range.end - range.begin);
        largest = std::max(largest, range.end - range.begin);
      }
      EXPECT_EQ(next, layers);
      EXPECT_LE(largest - smallest, 1);
      EXPECT_GE(smallest, 1);
    }
  }
}

}  // namespace
}  // namespace keel::parallel
