// Attention of generated tokens over the keys and values in a cache's blocks, for a whole batch.
#pragma once

#include <cstdint>

#include "gpu/element.h"

namespace keel::gpu {

// A token's positions are taken by parts of so many, which are joined in order: a token's result
// does not depend on what else is in the batch.
inline constexpr int64_t kAttentionPart = 256;

// For each query token: softmax(scores) v over the positions up to its own, or the last `window`
// of them; scores are scale * q k^T, and with a softcap softcap * tanh(score / softcap). Groups of
// heads / kv_heads query heads share a key/value head (Ainslie et al. 2023).
struct PagedAttention {
  Element element = Element::kF32;
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  const void* qkv =
      nullptr;  // [.., (heads + 2 kv_heads) * head_dim], of which the queries are read
  const void* keys = nullptr;  // [blocks, kv_heads, block_size, head_dim]
  const void* values = nullptr;
  int64_t block_size = 0;
  // Of each token: its row in qkv and out, its sequence, and its position in that.
  const int32_t* rows = nullptr;
  const int32_t* sequences = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* blocks = nullptr;  // [sequences, table_width]: where positions p stand, p / size
  int64_t table_width = 0;
  float scale = 1;
  float softcap = 0;             // 0: none
  int64_t window = 0;            // 0: none
  const float* sinks = nullptr;  // [heads]: one more score of each head, without a value; or null
  void* out = nullptr;           // [.., heads * head_dim]
  // For tokens whose positions are below `longest`: AttentionScratch floats, of any content.
  int64_t longest = 0;
  float* scratch = nullptr;
  int64_t parts() const { return (longest + kAttentionPart - 1) / kAttentionPart; }
};

// Of each token, head and part: its sum of values, its maximum, and its sum of weights.
inline int64_t AttentionScratch(const PagedAttention& a) {
  return a.tokens * a.heads * a.parts() * (a.head_dim + 2);
}

}  // namespace keel::gpu
