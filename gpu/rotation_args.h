// Rotary embedding, and the way of keys and values into the blocks of a cache.
#pragma once

#include <cstdint>

#include "gpu/element.h"

namespace keel::gpu {

// Where keys and values go: [blocks, kv_heads, block_size, head_dim] each.
struct KvBlocks {
  void* keys = nullptr;
  void* values = nullptr;
  const int32_t* slots =
      nullptr;  // [rows], of each token: block * block_size + place in it; -1: nowhere
  int64_t block_size = 0;
};

// Turns the query and key heads of qkv [rows, (heads + 2 kv_heads) * head_dim] by their positions:
// of each the pairs (i, i + half) for i below `half` (or, `interleaved`, (2i, 2i + 1)), by
// direction * angle.
// Everything else is copied. out may be `in`. cosine and sine are [positions, half]; with half 0
// nothing turns. Where kv.keys is not null, the turned keys and the values go there, too.
struct Rotate {
  Element element = Element::kF32;
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t half = 0;
  bool interleaved = false;
  const void* in = nullptr;
  void* out = nullptr;
  const int32_t* positions = nullptr;  // [rows], of the tables
  const float* cosine = nullptr;
  const float* sine = nullptr;
  float direction = 1;  // -1: the gradient
  KvBlocks kv;
};

}  // namespace keel::gpu
