// KvStore: where keys and values of the tokens decoded so far live, in blocks; and DecodeBatch:
// what one forward adds to them.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/tensor/arithmetic.h"

namespace keel::model {

// What a store must hold for one rank's model.
struct KvShape {
  int64_t layers = 0;
  int64_t kv_heads = 0;  // of this rank
  int64_t head_dim = 0;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  std::vector<int64_t> windows = {};  // of each layer; 0: none
  // Of one token over all layers.
  int64_t bytes_per_token() const {
    return 2 * layers * kv_heads * head_dim * static_cast<int64_t>(at::elementSize(dtype));
  }
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
