#include "model/config/head_split.h"

#include <algorithm>

namespace keel::model {

Span DealtOut(int64_t n, int64_t parts, int64_t index) {
  const int64_t each = n / parts;
  const int64_t more = n % parts;
  return {index * each + std::min(index, more), each + (index < more ? 1 : 0)};
}

HeadSplit HeadsOfRank(const HfConfig& config, int tp, int rank) {
  const int64_t kv_heads = config.num_key_value_heads;
  const int64_t group = config.num_attention_heads / kv_heads;  // query heads of a key/value head
  HeadSplit split;
  split.ffn = DealtOut(config.intermediate_size, tp, rank);
  split.expert = DealtOut(config.moe.width, tp, rank);
  split.shared = DealtOut(config.moe.shared_width, tp, rank);
  split.delta = DealtOut(config.delta.key_heads, tp, rank);
  if (!SharesKvHeads(config, tp)) {
    split.kv_heads = DealtOut(kv_heads, tp, rank);
    split.heads = {split.kv_heads.begin * group, split.kv_heads.size * group};
    return split;
  }
  // The first `wide` heads have a holder more than the others.
  const int64_t holders = tp / kv_heads;
  const int64_t wide = tp % kv_heads;
  const int64_t in_wide = wide * (holders + 1);  // ranks
  const int64_t head = rank < in_wide ? rank / (holders + 1) : wide + (rank - in_wide) / holders;
  const Span ranks = DealtOut(tp, kv_heads, head);
  split.kv_heads = {head, 1};
  split.kv_holders = static_cast<int>(ranks.size);
  split.kv_holder = static_cast<int>(rank - ranks.begin);
  split.heads = DealtOut(group, split.kv_holders, split.kv_holder);
  split.heads.begin += head * group;
  return split;
}

HeadSplit LargestHeadSplit(const HfConfig& config, int tp) {
  HeadSplit largest = HeadsOfRank(config, tp, 0);
  if (!SharesKvHeads(config, tp)) return largest;
  // The last head has the fewest holders, and its first holder the most of its query heads; but the
  // first head has the most holders.
  const int64_t fewest = tp / config.num_key_value_heads;
  largest.heads.size = HeadsOfRank(config, tp, tp - static_cast<int>(fewest)).heads.size;
  return largest;
}

}  // namespace keel::model
