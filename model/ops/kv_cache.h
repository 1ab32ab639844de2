// KvStore: where keys and values of the tokens decoded so far live, in blocks; and DecodeBatch:
// what one forward adds to them. Layers that mix tokens by a state (delta_rule.h) have neither keys
// nor values, but a state of each sequence, in a slot of the store.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "model/ops/delta_shape.h"
#include "parallel/tensor/arithmetic.h"

namespace keel::model {

// In the place of the window of a layer with a state.
inline constexpr int64_t kNoKeys = -1;

// What a store must hold for one rank's model.
struct KvShape {
  int64_t layers = 0;    // those with a state among them
  int64_t kv_heads = 0;  // of this rank
  int64_t head_dim = 0;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  std::vector<int64_t> windows = {};  // of each layer; 0: none, kNoKeys: it has a state
  DeltaShape recurrent = {};          // of such layers
  int64_t recurrent_layers() const { return std::count(windows.begin(), windows.end(), kNoKeys); }
  // Of one token in one layer.
  int64_t bytes_per_key() const {
    return 2 * kv_heads * head_dim * static_cast<int64_t>(at::elementSize(dtype));
  }
  // Of one token over all layers.
  int64_t bytes_per_token() const { return (layers - recurrent_layers()) * bytes_per_key(); }
  // Of one sequence over all layers, however long it is.
  int64_t bytes_per_sequence() const {
    return recurrent_layers() * recurrent.bytes_per_sequence(dtype);
  }
};

// Of all slots of a layer: [slots, value_heads, key_dim, value_dim], [slots, inputs, channels].
struct RecurrentStates {
  at::Tensor states, inputs;
};

class KvStore {
 public:
  virtual ~KvStore() = default;
  virtual int64_t block_size() const = 0;  // tokens
  // Whose blocks a layer's tokens stand in: the index of one of DecodeSequence::blocks.
  virtual size_t group(int64_t layer) const = 0;
  // [blocks, kv_heads, block_size, head_dim] each, contiguous, in the shape's dtype and device.
  virtual const at::Tensor& keys(int64_t layer) const = 0;
  virtual const at::Tensor& values(int64_t layer) const = 0;
  // Of a layer with a state, in place of these.
  virtual RecurrentStates recurrent(int64_t /*layer*/) const { return {}; }
};

// Tokens that follow those a sequence has in the store.
struct DecodeSequence {
  int64_t past = 0;    // tokens in the store
  int64_t tokens = 0;  // of this batch, at positions past, past + 1, ...
  // Of the whole text as far as it is known, where that decides how its positions turn: the tokens
  // in the store must have been decoded with a length that turns them alike (RopeSpec::by_length).
  int64_t length = 0;
  // Of each group of layers. Token p stands in blocks[group][p / block_size] at p % block_size;
  // room for past + tokens. Below 0 where no layer of the group sees the tokens that stood there.
  std::span<const std::vector<int32_t>> blocks;
  // Its slot, with layers that have a state, which is that behind `past` tokens: without any, what
  // the slot holds is not read.
  int32_t state = -1;
};

// Prompts, parts of prompts and single tokens of many sequences, one after another.
struct DecodeBatch {
  std::vector<int32_t> ids;  // of all sequences, in their order
  std::vector<DecodeSequence> sequences;
  std::vector<int64_t> outputs;  // rows of `ids` whose hidden state is wanted, ascending
  // With kBatchInvariant what is computed of a token does not depend on the batch on CUDA and with
  // more than two TP ranks either, where that costs something.
  parallel::Arithmetic arithmetic = parallel::Arithmetic::kGeneration;
};

}  // namespace keel::model
