// KvGroups: which layers of a model share the blocks of the KV cache. Torch-free.
//
// Layers that see all earlier tokens need every block of a sequence until it ends; layers with a
// window need the last ones. So layers are dealt out into groups of one window each, and a block
// belongs to one sequence's tokens in one group. All groups draw from one pool: a group has at most
// `page_layers` layers, and a block is that many layers wide, whoever takes it (as in vLLM's hybrid
// cache). With one kind of layers there is one group.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace keel::rollout {

struct KvGroups {
  struct Place {
    int group = 0;
    int64_t slot = 0;  // of the block's layers
  };
  int64_t page_layers = 0;
  std::vector<int64_t> windows = {};  // of each group; 0: all tokens
  std::vector<Place> of_layer = {};
};

// `windows` of each layer; below 0: it has no keys, and no place. page_layers is the number of
// layers of the rarer kind, so that little of a block is left unused.
KvGroups GroupLayers(std::span<const int64_t> windows);

}  // namespace keel::rollout
