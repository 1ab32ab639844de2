// Best-fit-decreasing bin packing: which documents share a sample.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace keel::trainer {

struct Bins {
  std::vector<int64_t> begin;  // [bins + 1], into items
  std::vector<int32_t> items;  // in their order within each bin

  int64_t size() const { return static_cast<int64_t>(begin.size()) - 1; }
  std::span<const int32_t> Items(int64_t bin) const {
    const auto b = static_cast<size_t>(bin);
    return std::span(items).subspan(static_cast<size_t>(begin[b]),
                                    static_cast<size_t>(begin[b + 1] - begin[b]));
  }
};

// Packs items of lengths[i] in [1, capacity]: the longest first, each into the bin with the least
// room that takes it, or a new one. At most 2^31 - 1 items. The bins come in the order of the first
// item of each. O(items + capacity), and within 11/9 of the fewest bins there can be (Johnson
// 1974).
Bins PackBestFit(std::span<const int32_t> lengths, int32_t capacity);

}  // namespace keel::trainer
