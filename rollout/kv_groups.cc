#include "rollout/kv_groups.h"

#include <algorithm>
#include <map>

namespace keel::rollout {

KvGroups GroupLayers(std::span<const int64_t> windows) {
  // Layers by kind, the ones without a window first.
  std::map<int64_t, std::vector<size_t>> kinds;
  for (size_t layer = 0; layer < windows.size(); ++layer)
    if (windows[layer] >= 0) kinds[windows[layer]].push_back(layer);
  KvGroups groups;
  for (const auto& [window, layers] : kinds) {
    const auto count = static_cast<int64_t>(layers.size());
    groups.page_layers = groups.page_layers == 0 ? count : std::min(groups.page_layers, count);
  }
  groups.of_layer.resize(windows.size());
  for (const auto& [window, layers] : kinds) {
    int64_t slot = groups.page_layers;  // none is begun
    for (const size_t layer : layers) {
      if (slot == groups.page_layers) {
        groups.windows.push_back(window);
        slot = 0;
      }
      groups.of_layer[layer] = {static_cast<int>(groups.windows.size()) - 1, slot++};
    }
  }
  return groups;
}

}  // namespace keel::rollout
