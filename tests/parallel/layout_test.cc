#include "parallel/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

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
                    layout.CoordOf(rank, Axis::kTp) + tp * (layout.CoordOf(rank, Axis::kDp) +
                                                            dp * layout.CoordOf(rank, Axis::kPp)));
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

// An axis that Keel does not have.
constexpr Axis kMadeUp = static_cast<Axis>(3);

using Coordinates = std::map<Axis, int>;

// Those of all ranks, read from an odometer whose first wheel turns fastest.
std::vector<Coordinates> Odometer(const std::vector<AxisDegree>& axes) {
  std::vector<Coordinates> ranks(1);
  for (const AxisDegree& one : axes) ranks[0][one.axis] = 0;
  while (true) {
    Coordinates next = ranks.back();
    size_t wheel = 0;
    while (wheel < axes.size() && ++next[axes[wheel].axis] == axes[wheel].degree)
      next[axes[wheel++].axis] = 0;
    if (wheel == axes.size()) return ranks;
    ranks.push_back(next);
  }
}

TEST(LayoutTest, AFurtherAxisNeedsNoMoreThanItsPlaceAmongTheOthers) {
  for (int place = 0; place <= 3; ++place) {
    std::vector<AxisDegree> axes = {{Axis::kTp, 2}, {Axis::kDp, 3}, {Axis::kPp, 2}};
    axes.insert(axes.begin() + place, {kMadeUp, 2});
    const Layout layout(axes);
    const std::vector<Coordinates> ranks = Odometer(axes);
    ASSERT_EQ(layout.world(), 24);
    ASSERT_EQ(ranks.size(), 24u);
    for (int rank = 0; rank < 24; ++rank) {
      const Coordinates& mine = ranks[static_cast<size_t>(rank)];
      for (const AxisDegree& one : axes) {
        EXPECT_EQ(layout.CoordOf(rank, one.axis), mine.at(one.axis));
        std::vector<int> group;
        for (int at = 0; at < one.degree; ++at) {
          Coordinates peer = mine;
          peer[one.axis] = at;
          group.push_back(
              static_cast<int>(std::find(ranks.begin(), ranks.end(), peer) - ranks.begin()));
        }
        EXPECT_EQ(layout.GroupRanks(rank, one.axis), group);
      }
      for (unsigned subset = 0; subset < 16; ++subset) {
        AxisSet set = {};
        Coordinates projected;
        int product = 1;
        for (size_t i = 0; i < axes.size(); ++i) {
          const bool in = (subset >> i & 1) != 0;
          if (in) set = set.With({axes[i].axis});
          if (in) product *= axes[i].degree;
          projected[axes[i].axis] = in ? mine.at(axes[i].axis) : 0;
        }
        EXPECT_EQ(layout.degree(set), product);
        const int expected =
            static_cast<int>(std::find(ranks.begin(), ranks.end(), projected) - ranks.begin());
        EXPECT_EQ(layout.Project(rank, set), expected);
      }
    }
  }
}

TEST(LayoutTest, AnAxisThatIsNotNamedHasDegreeOne) {
  const Layout layout = Layout::OfReplica(3);
  EXPECT_EQ(layout.world(), 3);
  EXPECT_EQ(layout.tp(), 3);
  EXPECT_EQ(layout.dp(), 1);
  EXPECT_EQ(layout.CoordOf(2, Axis::kPp), 0);
  EXPECT_EQ(layout.GroupRanks(2, Axis::kDp), std::vector<int>{2});
  EXPECT_EQ(layout.ToString(), "tp 3");
  EXPECT_EQ(ValueOrThrow(Layout::Make(4, 2, 2)).ToString(), "tp 2 x dp 1 x pp 2");
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
