// DecodePlan: where the tokens of a batch stand, in the device's memory, for Keel's kernels. Made
// and copied once a batch, and read by all layers.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/ops/kv_cache.h"

namespace keel::model {

struct DecodePlan {
  // Tokens that attend: row in the batch, sequence, position in it; [n] int32 each.
  struct Queries {
    at::Tensor rows, sequences, positions;
    int64_t longest = 0;  // one more than the last position of any
  };
  Queries all;
  Queries continued;  // without the prompts
  // The blocks of a group of layers (DecodeSequence::blocks).
  struct Group {
    at::Tensor blocks;  // [sequences, most of them] int32
    at::Tensor slots;   // [T] int32, of each token: block * block_size + place in it
  };
  std::vector<Group> groups;
  // Prompts that begin: sequences of more than one token that have none in the store yet.
  struct Prompts {
    at::Tensor rows;        // [n] int64: of their tokens in the batch, prompt by prompt
    at::Tensor boundaries;  // [prompts + 1] int32: of each in `rows`
    int64_t longest = 0;    // tokens; 0 where none begins
  };
  Prompts begun;

  static DecodePlan Of(const std::vector<DecodeSequence>& sequences, int64_t block_size,
                       at::Device device);
};

}  // namespace keel::model
