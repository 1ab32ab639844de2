// Which heads, and which columns of the feed-forward block, a tensor-parallel rank has. Torch-free.
//
// Whole groups of query heads, each with its key/value head, are dealt out over the ranks as evenly
// as can be, the first ranks getting one more: 9 heads with 3 key/value heads over two ranks are
// 6/2 and 3/1. Where there are fewer key/value heads than ranks, the ranks are dealt out over these
// heads instead, and a group's query heads over the ranks that hold its head: 14 heads with 2 over
// four ranks are 4/1, 3/1, 4/1 and 3/1. Either way every query head of a rank finds its key/value
// head there, all of a rank's key/value heads serve as many query heads, and ranks that hold the
// same head are neighbours. Decoder, memory forecast and checks of a layout all ask here; boxes of
// shard tables follow from it.
#pragma once

#include <cstdint>

#include "model/config/hf_config.h"

namespace keel::model {

// A run of heads, or of rows.
struct Span {
  int64_t begin = 0;
  int64_t size = 0;
  int64_t end() const { return begin + size; }
  friend bool operator==(const Span& a, const Span& b) = default;
};

// Part `index` of `n` things that are dealt out over `parts`: as even as can be, the first parts
// get one more.
Span DealtOut(int64_t n, int64_t parts, int64_t index);

struct HeadSplit {
  Span heads;     // query heads
  Span kv_heads;  // of which each serves heads.size / kv_heads.size query heads of this rank
  Span ffn;       // rows of gate and up, columns of down
  Span expert;    // the same of each expert, with experts
  Span shared;    // and of the shared one
  Span delta;     // key heads of layers that mix by the delta rule
  // The TP ranks that hold the same key/value heads: how many, and which of them this rank is.
  int kv_holders = 1;
  int kv_holder = 0;
  friend bool operator==(const HeadSplit& a, const HeadSplit& b) = default;
};

// Of a model for which LayoutProblems finds nothing wrong with `tp`.
HeadSplit HeadsOfRank(const HfConfig& config, int tp, int rank);
// The most of each that any rank has.
HeadSplit LargestHeadSplit(const HfConfig& config, int tp);
// Whether some ranks hold the same key/value heads.
inline bool SharesKvHeads(const HfConfig& config, int tp) {
  return config.num_key_value_heads < tp;
}

}  // namespace keel::model
