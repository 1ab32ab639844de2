#include "rollout/kv_groups.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace keel::rollout {
namespace {

TEST(KvGroupsTest, LayersOfOneKindAreOneGroup) {
  for (const int64_t window : {0, 7}) {
    const KvGroups groups = GroupLayers(std::vector<int64_t>(5, window));
    EXPECT_EQ(groups.page_layers, 5);
    EXPECT_EQ(groups.windows, std::vector<int64_t>{window});
    for (int64_t layer = 0; layer < 5; ++layer)
      EXPECT_EQ(groups.of_layer[static_cast<size_t>(layer)].slot, layer);
  }
}

TEST(KvGroupsTest, TheRarerKindSaysHowWideABlockIs) {
  // Five windows to one without, as Gemma 3 has them, 26 layers in all.
  std::vector<int64_t> windows;
  for (int layer = 1; layer <= 26; ++layer) windows.push_back(layer % 6 == 0 ? 0 : 512);
  const KvGroups groups = GroupLayers(windows);
  EXPECT_EQ(groups.page_layers, 4);
  EXPECT_EQ(groups.windows, (std::vector<int64_t>{0, 512, 512, 512, 512, 512, 512}));
  std::set<std::pair<int, int64_t>> places;
  for (size_t layer = 0; layer < windows.size(); ++layer) {
    const KvGroups::Place& place = groups.of_layer[layer];
    EXPECT_EQ(groups.windows[static_cast<size_t>(place.group)], windows[layer]);
    EXPECT_LT(place.slot, groups.page_layers);
    EXPECT_TRUE(places.emplace(place.group, place.slot).second);
  }
}

}  // namespace
}  // namespace keel::rollout
